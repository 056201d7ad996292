package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"path/filepath"
	"time"

	"go.etcd.io/bbolt"

	"github.com/runnerd/runnerd/pkg/auditstore"
)

var writers = []int{1, 8, 64, 256}

func commitRows() (rows []string) {
	for _, n := range writers {
		rows = append(rows, fmt.Sprintf("commit-rate/%d/events_per_second", n))
	}
	return rows
}

// eventBytes is the size of an event with a tool result.
const eventBytes = 1300

// commitRate measures appends of one event by so many runs at once. The floor is bbolt itself: transactions that put
// as many values of the stored size as the store had in a group on average, under keys that only grow.
func (b *bench) commitRate(ctx context.Context) error {
	span := 150 * time.Millisecond
	if b.quick {
		span /= 3
	}
	for _, n := range writers {
		var own, least []float64
		for range b.few(6) {
			store, floor, err := b.compareCommits(ctx, n, span)
			if err != nil {
				return fmt.Errorf("%d writers: %w", n, err)
			}
			own, least = append(own, store), append(least, floor)
		}
		b.add(row{fmt.Sprintf("commit-rate/%d/events_per_second", n), median(own), "1/s", median(least), atLeast(0.8)})
	}
	return nil
}

// compareCommits measures the store, bbolt, bbolt, and the store again, so that neither has the better moments of the
// disk.
func (b *bench) compareCommits(ctx context.Context, n int, span time.Duration) (store, floor float64, err error) {
	stats, first, err := b.appendRate(ctx, n, span)
	if err != nil {
		return 0, 0, err
	}
	group := int(math.Round(float64(stats.Appends) / float64(stats.Commits)))
	for range 2 {
		rate, err := b.boltRate(group, int(stats.Bytes/stats.Appends), span)
		if err != nil {
			return 0, 0, err
		}
		floor += rate / 2
	}
	_, second, err := b.appendRate(ctx, n, span)
	store = (first + second) / 2
	b.note("%d writers: %.0f events/s in groups of %d, commit %v on average; bbolt alone in groups of %d: %.0f/s",
		n, store, group, (stats.CommitTime / time.Duration(stats.Commits)).Round(time.Microsecond), group, floor)
	return store, floor, err
}

// appendRate returns what the store did while runs appended an event after the other, and events per second.
func (b *bench) appendRate(ctx context.Context, runs int, span time.Duration) (stats auditstore.Stats, rate float64, err error) {
	store, err := b.openStore()
	if err != nil {
		return stats, 0, err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	claims := make([]*auditstore.Claim, runs)
	for i := range claims {
		if claims[i], err = firstEvent(ctx, store, fmt.Sprintf("run-%d", i)); err != nil {
			return stats, 0, err
		}
	}
	before := store.Stats()
	began := time.Now()
	err = parallel(ctx, runs, func(ctx context.Context, i int) error {
		for time.Since(began) < span {
			if err := appendEvents(ctx, store, claims[i], 1); err != nil {
				return err
			}
		}
		return nil
	})
	took := time.Since(began)
	stats = store.Stats()
	stats.Commits -= before.Commits
	stats.Appends -= before.Appends
	stats.Bytes -= before.Bytes
	stats.CommitTime -= before.CommitTime
	return stats, float64(stats.Appends) / took.Seconds(), err
}

// openStore opens a new store.
func (b *bench) openStore() (*auditstore.Store, error) {
	dir, err := b.folder()
	if err != nil {
		return nil, err
	}
	return auditstore.Open(dir, &auditstore.Options{Logger: slog.New(slog.DiscardHandler)})
}

// firstEvent claims a new run and appends its first event.
func firstEvent(ctx context.Context, log auditstore.Log, run string) (*auditstore.Claim, error) {
	claim, err := log.Claim(ctx, run, "bench", 0)
	if err != nil {
		return nil, err
	}
	return claim, appendEvents(ctx, log, claim, 1)
}

// appendEvents makes one append of so many events.
func appendEvents(ctx context.Context, log auditstore.Log, claim *auditstore.Claim, n int) error {
	records := make([]auditstore.Record, n)
	for i := range records {
		records[i].Sequence = claim.Head + 1 + uint64(i)
		records[i].Public = bytes.Repeat([]byte{byte(records[i].Sequence)}, eventBytes)
	}
	_, err := log.Append(ctx, claim, auditstore.Append{Records: records})
	return err
}

// boltRate returns how many values a second bbolt commits in groups.
func (b *bench) boltRate(group, size int, span time.Duration) (rate float64, err error) {
	dir, err := b.folder()
	if err != nil {
		return 0, err
	}
	db, err := bbolt.Open(filepath.Join(dir, "floor.db"), 0o600, &bbolt.Options{FreelistType: bbolt.FreelistMapType, InitialMmapSize: 4 << 30})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	err = db.Update(func(tx *bbolt.Tx) error {
		_, err := tx.CreateBucket(floorBucket)
		return err
	})
	if err != nil {
		return 0, err
	}
	value := make([]byte, size)
	position := uint64(0)
	began := time.Now()
	for time.Since(began) < span {
		err := db.Update(func(tx *bbolt.Tx) error {
			bucket := tx.Bucket(floorBucket)
			bucket.FillPercent = 0.95
			for range group {
				position++
				if err := bucket.Put(binary.BigEndian.AppendUint64(nil, position), value); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return 0, err
		}
	}
	return float64(position) / time.Since(began).Seconds(), nil
}

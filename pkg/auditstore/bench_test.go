package auditstore_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/runnerd/runnerd/pkg/auditstore"
	"github.com/runnerd/runnerd/pkg/auditstore/auditstoretest"
)

// eventSize is that of an event of the reference workload in bytes.
const eventSize = 1300

// BenchmarkCommit appends from as many runs as the group has members, one event
// each time, and compares with what bbolt alone makes of the same values under
// sequential keys, put in groups of the size that formed. (Members that encode
// their next event while the others are committed make it smaller than their
// number.) An operation is one append.
//
// x-bbolt is the ratio of the rates; it should be at least 0.8.
func BenchmarkCommit(b *testing.B) {
	for _, group := range []int{1, 8, 64, 256} {
		b.Run(fmt.Sprintf("group-%d", group), func(b *testing.B) {
			s := open(b, b.TempDir(), auditstore.Options{})
			claims := make([]*auditstore.Claim, group)
			for i := range claims {
				claims[i] = claim(b, s, fmt.Sprintf("run-%d", i))
				appendN(b, s, claims[i], 1)
			}
			before := s.Stats()
			b.ResetTimer()
			var left atomic.Int64
			left.Store(int64(b.N))
			var wg sync.WaitGroup
			for _, c := range claims {
				wg.Go(func() {
					public := bytes.Repeat([]byte{7}, eventSize)
					for left.Add(-1) >= 0 {
						a := auditstore.Append{Records: []auditstore.Record{{Sequence: c.Head + 1, Public: public}}}
						if _, err := s.Append(context.Background(), c, a); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
			b.StopTimer()
			took := b.Elapsed()
			after := s.Stats()
			formed := float64(after.Appends-before.Appends) / float64(after.Commits-before.Commits)
			raw := rawCommits(b, int(math.Round(formed)))
			b.ReportMetric(float64(b.N)/took.Seconds(), "appends/s")
			b.ReportMetric(float64((after.CommitTime-before.CommitTime).Microseconds())/float64(after.Commits-before.Commits), "µs/commit")
			b.ReportMetric(formed, "appends/commit")
			b.ReportMetric(raw.Seconds()/took.Seconds(), "x-bbolt")
		})
	}
}

// rawCommits has bbolt alone do what the benchmark did, and returns how long it
// took.
func rawCommits(b *testing.B, group int) time.Duration {
	b.Helper()
	db, err := bbolt.Open(filepath.Join(b.TempDir(), "raw.db"), 0o600, &bbolt.Options{
		FreelistType: bbolt.FreelistMapType, InitialMmapSize: 4 << 30,
	})
	if err != nil {
		b.Fatal(err)
	}
	defer db.Close()
	if err := db.Update(func(tx *bbolt.Tx) error {
		_, err := tx.CreateBucket([]byte("appends"))
		return err
	}); err != nil {
		b.Fatal(err)
	}
	value := bytes.Repeat([]byte{7}, eventSize+100)
	began := time.Now()
	for n := 0; n < b.N; {
		err := db.Update(func(tx *bbolt.Tx) error {
			bucket := tx.Bucket([]byte("appends"))
			bucket.FillPercent = 0.95
			for range group {
				n++
				if err := bucket.Put(binary.BigEndian.AppendUint64(nil, uint64(n)), value); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			b.Fatal(err)
		}
	}
	return time.Since(began)
}

// BenchmarkLongRun appends one event and reads one from the file, early and late
// in a run, in files of the same size. The two should cost the same. An operation
// is one append and one read.
func BenchmarkLongRun(b *testing.B) {
	for _, events := range []int{100, 100_000} {
		b.Run(fmt.Sprintf("event-%d", events), func(b *testing.B) {
			s := open(b, b.TempDir(), auditstore.Options{RingAppends: 1})
			c, other := claim(b, s, "a"), claim(b, s, "other")
			for c.Head < uint64(events) {
				appendN(b, s, c, 10)
			}
			for c.Head+other.Head < 100_000 {
				appendN(b, s, other, 10)
			}
			reads, appends := time.Duration(0), time.Duration(0)
			b.ResetTimer()
			for i := range b.N {
				began := time.Now()
				appendN(b, s, c, 1)
				appended := time.Now()
				after := auditstore.Cursor{Sequence: uint64(events) - 1 - uint64(i)%uint64(events)}
				page, _, err := s.Read(context.Background(), auditstore.Scope{Run: "a"}, after, 1)
				if err != nil || len(page) == 0 || page[0].Sequence != after.Sequence+1 {
					b.Fatalf("%v %v", page, err)
				}
				reads += time.Since(appended)
				appends += appended.Sub(began)
			}
			b.ReportMetric(float64(reads.Nanoseconds())/float64(b.N), "ns/read")
			b.ReportMetric(float64(appends.Nanoseconds())/float64(b.N), "ns/append")
		})
	}
}

// BenchmarkFollow reads every append at the head, as one watcher of all runs does
// whose events are in memory. An operation is one event read.
func BenchmarkFollow(b *testing.B) {
	s := open(b, b.TempDir(), auditstore.Options{})
	c := claim(b, s, "a")
	const events = 1000
	for range events {
		if _, err := s.Append(context.Background(), c, auditstore.Append{Records: auditstoretest.Events(c, 1)}); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportAllocs()
	b.ResetTimer()
	var after auditstore.Cursor
	for range b.N {
		page, next, err := s.Read(context.Background(), auditstore.Scope{}, after, 1)
		if err != nil || len(page) != 1 {
			b.Fatalf("%v %v", page, err)
		}
		if after = next; next.Position == events {
			after = auditstore.Cursor{}
		}
	}
}

package main

import (
	"encoding/binary"
	"errors"
	"sync"
	"time"

	"go.etcd.io/bbolt"
)

// floorStore is the recorder of floor-bbolt: one bucket, keys run/seq, and one writer that commits what waits
// without waiting for more.
type floorStore struct {
	db    *bbolt.DB
	queue chan floorPut
	done  chan struct{}

	mu    sync.Mutex
	times []int64 // ns of each commit
}

type floorPut struct {
	key, value []byte
	durable    chan error
}

var floorBucket = []byte("events")

// floorQueue is how many steps may wait: more than runs are ever in flight.
const floorQueue = 4096

func openFloorStore(path string) (*floorStore, error) {
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{FreelistType: bbolt.FreelistMapType, InitialMmapSize: 4 << 30})
	if err != nil {
		return nil, err
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		_, err := tx.CreateBucketIfNotExists(floorBucket)
		return err
	})
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	s := &floorStore{db: db, queue: make(chan floorPut, floorQueue), done: make(chan struct{})}
	go s.write()
	return s, nil
}

// put implements recorder.
func (s *floorStore) put(run string, sequence uint64, value []byte) error {
	key := binary.BigEndian.AppendUint64(append(append(make([]byte, 0, len(run)+9), run...), '/'), sequence)
	p := floorPut{key: key, value: value, durable: make(chan error, 1)}
	s.queue <- p
	return <-p.durable
}

func (s *floorStore) write() {
	defer close(s.done)
	for first := range s.queue {
		group := []floorPut{first}
		for len(s.queue) > 0 {
			group = append(group, <-s.queue)
		}
		began := time.Now()
		err := s.db.Update(func(tx *bbolt.Tx) error {
			bucket := tx.Bucket(floorBucket)
			for _, p := range group {
				if err := bucket.Put(p.key, p.value); err != nil {
					return err
				}
			}
			return nil
		})
		took := time.Since(began)
		for _, p := range group {
			p.durable <- err
		}
		s.mu.Lock()
		s.times = append(s.times, int64(took))
		s.mu.Unlock()
	}
}

// commitTimes returns the times of the commits since it was called last.
func (s *floorStore) commitTimes() []int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	times := s.times
	s.times = nil
	return times
}

func (s *floorStore) close() error {
	close(s.queue)
	<-s.done
	return s.db.Close()
}

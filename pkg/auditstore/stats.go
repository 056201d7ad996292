package auditstore

import (
	"math/bits"
	"time"
)

// CommitBuckets is the number of buckets of [Stats.CommitTimes].
const CommitBuckets = 20

// Stats are totals since the store was opened, and some states of now.
type Stats struct {
	Commits uint64 // transactions that wrote something
	Appends uint64
	Events  uint64
	Bytes   uint64 // of stored appends with their private parts

	// CommitTime is the time spent in commits, nearly all of it in two syncs each.
	CommitTime time.Duration
	// CommitTimes counts commits by duration: bucket i those below 2^i · 16 µs that
	// were not in a bucket before, the last bucket all others.
	CommitTimes [CommitBuckets]uint64

	FileBytes int64 // of the file that are or once were in use
	FreePages int   // pages of the file that can be used again
	OpenReads int   // read transactions open just now
	RingBytes int   // memory that the newest appends take
	Heads     int   // heads of runs remembered
}

func (s *Stats) commit(d time.Duration) {
	s.Commits++
	s.CommitTime += d
	i := bits.Len64(uint64(max(d, 0)) / uint64(16*time.Microsecond))
	s.CommitTimes[min(i, CommitBuckets-1)]++
}

// Stats returns the totals.
func (s *Store) Stats() Stats {
	s.mu.RLock()
	st := s.stats
	st.RingBytes, st.Heads = s.ring.bytes, len(s.heads)
	s.mu.RUnlock()
	db := s.db.Stats()
	st.FileBytes = s.pages.Load()
	st.FreePages = db.FreePageN + db.PendingPageN
	st.OpenReads = db.OpenTxN
	return st
}

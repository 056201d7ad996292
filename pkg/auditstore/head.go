package auditstore

import (
	"encoding/binary"
	"maps"

	"go.etcd.io/bbolt"
)

// head is where a run stands: what an append is checked against.
type head struct {
	sequence uint64 // of its last event, 0: none
	hash     Digest // of that event
	epoch    Epoch  // the newest claim
	saved    Epoch  // the epoch beside its row in the file
	owner    string // of the newest claim, if it was made since the open
	from     Epoch  // what that claim was made from
}

// loadHead reads the head of a run from the file. The zero head is that of a run
// never seen.
func loadHead(tx *bbolt.Tx, run string, tail []ref) (head, error) {
	var h head
	row, ok, err := getRow(tx, run)
	if err != nil {
		return head{}, err
	}
	if ok {
		h.epoch, h.saved = row.epoch, row.epoch
	}
	last, ok, err := lastRef(tx, run, tail)
	if err != nil || !ok {
		return h, err
	}
	a, err := getAppend(tx.Bucket(bucketAppends), run, last.pos)
	if err != nil {
		return head{}, err
	}
	h.sequence = a.last()
	if h.hash, ok = a.lastHash(); !ok {
		return head{}, &CorruptError{Run: run, Sequence: a.first, Position: last.pos, Problem: "header damaged"}
	}
	return h, nil
}

// getAppend reads the append of a run at a position that the index named.
func getAppend(appends *bbolt.Bucket, run string, pos Position) (header, error) {
	var key [8]byte
	binary.BigEndian.PutUint64(key[:], uint64(pos))
	v := appends.Get(key[:])
	if v == nil {
		return header{}, &CorruptError{Run: run, Position: pos, Problem: "append missing"}
	}
	h, ok := decodeHeader(v)
	if !ok {
		return header{}, &CorruptError{Run: run, Position: pos, Problem: "header damaged"}
	}
	if string(h.run) != run {
		return header{}, &CorruptError{Run: run, Position: pos, Problem: "append of another run"}
	}
	return h, nil
}

// storedRow is a value of bucket rows. row points into the file.
type storedRow struct {
	epoch Epoch
	row   []byte // nil: none
}

func getRow(tx *bbolt.Tx, run string) (storedRow, bool, error) {
	v := tx.Bucket(bucketRows).Get([]byte(run))
	if v == nil {
		return storedRow{}, false, nil
	}
	data, ok := sealed(v)
	if !ok || len(data) < 9 {
		return storedRow{}, false, &CorruptError{Run: run, Problem: "row damaged"}
	}
	r := storedRow{epoch: Epoch(binary.BigEndian.Uint64(data))}
	if data[8] == 1 {
		r.row = data[9:]
	}
	return r, true, nil
}

func encodeRow(epoch Epoch, row []byte) []byte {
	v := make([]byte, sumSize, sumSize+9+len(row))
	v = binary.BigEndian.AppendUint64(v, uint64(epoch))
	if row == nil {
		v = append(v, 0)
	} else {
		v = append(append(v, 1), row...)
	}
	return seal(v)
}

// remember keeps heads, and forgets some at random once there are too many. A
// head that holds a claim not yet in the file stays: the file could not fence
// what is older. Called with mu held.
func (s *Store) remember(changed map[string]head) {
	maps.Copy(s.heads, changed)
	if len(s.heads) <= s.opts.Heads {
		return
	}
	keep := s.opts.Heads - s.opts.Heads/8
	for run, h := range s.heads {
		if len(s.heads) <= keep {
			return
		}
		if h.saved == h.epoch {
			delete(s.heads, run)
		}
	}
}

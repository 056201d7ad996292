package auditstore

import "slices"

// ring keeps the newest appends in memory, encoded once for all readers. It has
// no lock of its own.
type ring struct {
	maxBytes, maxAppends int

	first   Position   // of appends[0]
	appends [][]Record // positions are dense: index is position - first
	bytes   int
}

// recordOverhead is roughly what a Record costs beside its bytes.
const recordOverhead = 256

func weight(records []Record) (n int) {
	for i := range records {
		n += recordOverhead + len(records[i].Wire) + len(records[i].Private) + len(records[i].Salt)
	}
	return n
}

// push adds the append after the newest one.
func (r *ring) push(pos Position, records []Record) {
	if len(r.appends) == 0 {
		r.first = pos
	}
	r.appends = append(r.appends, records)
	r.bytes += weight(records)
	drop := 0
	for drop < len(r.appends) && (r.bytes > r.maxBytes || len(r.appends)-drop > r.maxAppends) {
		r.bytes -= weight(r.appends[drop])
		r.appends[drop] = nil // the array lives on until append moves it
		drop++
	}
	r.appends = r.appends[drop:]
	r.first += Position(drop)
}

// at returns the records of an append, nil if the ring does not hold it.
func (r *ring) at(pos Position) []Record {
	if pos < r.first || pos-r.first >= Position(len(r.appends)) {
		return nil
	}
	return r.appends[pos-r.first]
}

// erase drops private parts and salts of an append. Readers may hold the old
// records, which therefore stay as they are.
func (r *ring) erase(pos Position) {
	old := r.at(pos)
	if old == nil {
		return
	}
	r.bytes -= weight(old)
	records := slices.Clone(old)
	for i := range records {
		e := &records[i]
		e.Erased = e.Erased || e.Private != nil
		e.Private, e.Salt = nil, nil
	}
	r.appends[pos-r.first] = records
	r.bytes += weight(records)
}

// after returns the records of the appends after a position, false if the ring
// does not hold all of them.
func (r *ring) after(pos Position) ([][]Record, bool) {
	if len(r.appends) == 0 || pos+1 < r.first {
		return nil, false
	}
	return r.appends[min(pos+1-r.first, Position(len(r.appends))):], true
}

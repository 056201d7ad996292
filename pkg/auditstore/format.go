package auditstore

import (
	"encoding/binary"
	"hash/crc32"
)

// formatVersion is the version of the file format that doc.go describes.
const formatVersion = 1

// The buckets of the file.
var (
	bucketMeta    = []byte("meta")
	bucketAppends = []byte("appends")
	bucketPrivate = []byte("private")
	bucketIndex   = []byte("index")
	bucketRows    = []byte("rows")
	bucketKeys    = []byte("keys")
	bucketBodies  = []byte("bodies")
	bucketShared  = []byte("shared")
	bucketBlobs   = []byte("blobs")

	buckets = [][]byte{
		bucketMeta, bucketAppends, bucketPrivate, bucketIndex, bucketRows,
		bucketKeys, bucketBodies, bucketShared, bucketBlobs,
	}
)

// The keys of bucket meta.
var (
	metaFormat    = []byte("format")
	metaID        = []byte("id")
	metaDigestKey = []byte("digest_key")
	metaOpens     = []byte("opens")
	metaIndexed   = []byte("indexed")
	metaOpen      = []byte("open")
)

const sumSize = 4

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// seal writes the checksum of value[sumSize:] into value[:sumSize].
func seal(value []byte) []byte {
	binary.BigEndian.PutUint32(value, crc32.Checksum(value[sumSize:], castagnoli))
	return value
}

// sealed returns the part of a stored value that its checksum covers.
func sealed(value []byte) ([]byte, bool) {
	if len(value) < sumSize || binary.BigEndian.Uint32(value) != crc32.Checksum(value[sumSize:], castagnoli) {
		return nil, false
	}
	return value[sumSize:], true
}

func be64(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }

// runPrefix is what the keys of a run begin with in index, bodies and blobs.
func runPrefix(run string) []byte { return append([]byte(run), 0) }

func runKey(run string, sequence uint64) []byte {
	return binary.BigEndian.AppendUint64(runPrefix(run), sequence)
}

// encoded is an append as it is stored and as it is read, made before it is
// handed to the writer so that runs encode in parallel.
type encoded struct {
	value   []byte
	private []byte   // nil: no record has a private part or a salt
	records []Record // Position and trailers are not there yet
}

// encode builds the stored value of records that follow prev, and their copies
// for readers. Each Wire has room for its trailer.
func encode(run string, prev Digest, records []Record) encoded {
	public, private, hidden := 0, 0, false
	for i := range records {
		r := &records[i]
		public += len(r.Public)
		private += len(r.Private) + len(r.Salt) + 2*binary.MaxVarintLen32
		hidden = hidden || r.Private != nil || len(r.Salt) > 0
	}
	const perRecord = len(Digest{}) + binary.MaxVarintLen32
	bound := sumSize + 4 + 3*binary.MaxVarintLen64 + len(run) + len(prev) + len(records)*perRecord + public
	e := encoded{value: make([]byte, sumSize+4, bound), records: make([]Record, len(records))}
	wires := make([]byte, 0, public+len(records)*MaxTrailer)

	v := binary.AppendUvarint(e.value, uint64(len(run)))
	v = append(v, run...)
	v = binary.AppendUvarint(v, records[0].Sequence)
	v = binary.AppendUvarint(v, uint64(len(records)))
	v = append(v, prev[:]...)
	for i := range records {
		r := &records[i]
		hash := Hash(prev, r.Public)
		v = append(v, hash[:]...)
		size := uint64(len(r.Public)) << 1
		if r.Private != nil {
			size |= 1
		}
		v = binary.AppendUvarint(v, size)

		room := len(r.Public) + MaxTrailer
		wire := append(wires[len(wires):len(wires):len(wires)+room], r.Public...)
		wires = wires[:len(wires)+room]
		e.records[i] = Record{Run: run, Sequence: r.Sequence, PrevHash: prev, Hash: hash, Wire: wire}
		prev = hash
	}
	header := len(v) - sumSize - 4
	binary.BigEndian.PutUint32(v[sumSize:], uint32(header))
	binary.BigEndian.PutUint32(v, crc32.Checksum(v[sumSize:], castagnoli))
	for i := range records {
		v = append(v, records[i].Public...)
	}
	e.value = v
	if hidden {
		e.private = encodePrivate(records, private)
		decodePrivate(e.private, e.records) // cannot fail
	}
	return e
}

// place completes the records of an append that got its position.
func (e *encoded) place(pos Position) {
	for i := range e.records {
		r := &e.records[i]
		n := len(r.Wire)
		r.Position = pos
		r.Wire = AppendTrailer(r.Wire, pos, r.PrevHash, r.Hash)
		r.Public = r.Wire[:n:n]
	}
}

func encodePrivate(records []Record, bound int) []byte {
	v := make([]byte, sumSize, sumSize+bound)
	for i := range records {
		r := &records[i]
		if r.Private == nil {
			v = binary.AppendUvarint(v, 0)
		} else {
			v = binary.AppendUvarint(v, 1+uint64(len(r.Private)))
			v = append(v, r.Private...)
		}
		v = binary.AppendUvarint(v, uint64(len(r.Salt)))
		v = append(v, r.Salt...)
	}
	return seal(v)
}

// decodePrivate sets Private and Salt of the records of one append to parts of the
// stored value.
func decodePrivate(value []byte, records []Record) bool {
	data, ok := sealed(value)
	if !ok {
		return false
	}
	d := decoder{data, true}
	for i := range records {
		if n := d.uvarint(); n > 0 {
			records[i].Private = d.bytes(n - 1)
		}
		if n := d.uvarint(); n > 0 {
			records[i].Salt = d.bytes(n)
		}
	}
	return d.ok && len(d.data) == 0
}

// header is the head of a stored append. Its slices point into the stored value.
type header struct {
	run     []byte
	first   uint64
	count   int
	prev    Digest
	entries []byte // hash and size of each record
	public  []byte
}

// decodeHeader reads the head of a stored append. It guards against damage by
// the checksum, and against what a checksum cannot rule out by bounds.
func decodeHeader(value []byte) (header, bool) {
	if len(value) < sumSize+4 {
		return header{}, false
	}
	size := uint64(binary.BigEndian.Uint32(value[sumSize:]))
	if size > uint64(len(value)-sumSize-4) {
		return header{}, false
	}
	end := sumSize + 4 + int(size)
	if _, ok := sealed(value[:end]); !ok {
		return header{}, false
	}
	d := decoder{value[sumSize+4 : end], true}
	h := header{public: value[end:]}
	h.run = d.bytes(d.uvarint())
	h.first = d.uvarint()
	count := d.uvarint()
	copy(h.prev[:], d.bytes(uint64(len(h.prev))))
	h.entries = d.data
	const perRecord = uint64(len(Digest{})) + 1 // at least
	if !d.ok || count == 0 || count > uint64(len(h.entries))/perRecord || h.first == 0 {
		return header{}, false
	}
	h.count = int(count)
	return h, true
}

func (h *header) last() uint64 { return h.first + uint64(h.count) - 1 }

// lastHash returns the hash of the append's last record.
func (h *header) lastHash() (hash Digest, ok bool) {
	d := decoder{h.entries, true}
	for range h.count {
		copy(hash[:], d.bytes(uint64(len(hash))))
		d.uvarint()
	}
	return hash, d.ok
}

// records appends to dst the records with a sequence larger than after, copied
// out of the stored value. private says that one of them names a private part or
// may have a salt.
func (h *header) records(dst []Record, run string, pos Position, after uint64) (_ []Record, ok bool) {
	wires := make([]byte, 0, len(h.public)+h.count*MaxTrailer)
	d, pub, prev := decoder{h.entries, true}, decoder{h.public, true}, h.prev
	for i := range h.count {
		r := Record{Run: run, Sequence: h.first + uint64(i), Position: pos, PrevHash: prev}
		copy(r.Hash[:], d.bytes(uint64(len(r.Hash))))
		size := d.uvarint()
		public := pub.bytes(size >> 1)
		if !d.ok || !pub.ok {
			return dst, false
		}
		prev = r.Hash
		if r.Sequence <= after {
			continue
		}
		r.Erased = size&1 == 1 // until its private part is found
		from := len(wires)
		wires = append(wires, public...)
		wires = AppendTrailer(wires, pos, r.PrevHash, r.Hash)
		r.Wire = wires[from:len(wires):len(wires)]
		r.Public = r.Wire[:len(public):len(public)]
		dst = append(dst, r)
	}
	return dst, len(pub.data) == 0
}

// decoder takes values off the front of data. ok turns false at the first that is
// not there.
type decoder struct {
	data []byte
	ok   bool
}

func (d *decoder) uvarint() uint64 {
	v, n := binary.Uvarint(d.data)
	if n <= 0 {
		d.ok, d.data = false, nil
		return 0
	}
	d.data = d.data[n:]
	return v
}

func (d *decoder) bytes(n uint64) []byte {
	if n > uint64(len(d.data)) {
		d.ok, d.data = false, nil
		return nil
	}
	b := d.data[:n:n]
	d.data = d.data[n:]
	return b
}

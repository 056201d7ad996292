package auditstore

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// TestHash holds the chain to values computed elsewhere: clients check it too.
func TestHash(t *testing.T) {
	t.Parallel()
	t.Run("T-177 hash chain", func(t *testing.T) {
		t.Parallel()
		first := Hash(Digest{}, nil)
		second := Hash(first, []byte("a"))
		for _, tt := range []struct {
			got  Digest
			want string
		}{
			{first, "68418f5c485d062d4d3e8a25211be66a38c93fc3d86931c448084a9a40c2ce01"},
			{second, "3d682d8e76d49d0f64e87952d6d1655aa96d111661babad4b4ce8045587264df"},
		} {
			if got := hex.EncodeToString(tt.got[:]); got != tt.want {
				t.Errorf("hash %s, want %s", got, tt.want)
			}
		}
	})
}

func TestTrailer(t *testing.T) {
	t.Parallel()
	prev, hash := Digest{1}, Digest{2}
	for pos, varint := range map[Position]string{1: "01", 300: "ac02", 1<<64 - 1: "ffffffffffffffffff01"} {
		want := "70" + // what was there before
			"c83e" + varint + // field 1001, varint
			"d23e20" + hex.EncodeToString(prev[:]) + // field 1002, 32 bytes
			"da3e20" + hex.EncodeToString(hash[:]) // field 1003, 32 bytes
		got := AppendTrailer([]byte("p"), pos, prev, hash)
		if hex.EncodeToString(got) != want {
			t.Errorf("position %d: %x, want %s", pos, got, want)
		}
		if len(got)-1 > MaxTrailer {
			t.Errorf("position %d: trailer of %d bytes, at most %d", pos, len(got)-1, MaxTrailer)
		}
	}
}

func TestEpochStart(t *testing.T) {
	t.Parallel()
	if got := (Epoch(7)<<32 | 9).Start(); got != 7 {
		t.Errorf("start %d, want 7", got)
	}
}

// drawRecords draws the records of one append.
func drawRecords(t *rapid.T) []Record {
	first := rapid.Uint64Range(1, 1<<40).Draw(t, "first")
	part := rapid.SliceOfN(rapid.Byte(), 0, 300)
	records := make([]Record, rapid.IntRange(1, 20).Draw(t, "count"))
	for i := range records {
		records[i] = Record{Sequence: first + uint64(i), Public: part.Draw(t, "public")}
		if rapid.Bool().Draw(t, "hidden") {
			records[i].Private = append([]byte{}, part.Draw(t, "private")...)
			if salt := part.Draw(t, "salt"); len(salt) > 0 {
				records[i].Salt = salt
			}
		}
	}
	return records
}

// TestStoredAppendIsWhatWasGiven: what is read from the file equals what readers
// at the head get, and both are what was given.
func TestStoredAppendIsWhatWasGiven(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		in := drawRecords(t)
		prev := Digest(rapid.SliceOfN(rapid.Byte(), 32, 32).Draw(t, "prev"))
		pos := Position(rapid.Uint64().Draw(t, "position"))
		e := encode("run", prev, in)
		e.place(pos)
		h, ok := decodeHeader(e.value)
		if !ok {
			t.Fatal("header does not decode")
		}
		out, ok := h.records(nil, "run", pos, 0)
		if !ok || e.private != nil && !decodePrivate(e.private, out) {
			t.Fatal("records do not decode")
		}
		for i := range out {
			if e.private != nil && out[i].Private != nil {
				out[i].Erased = false
			}
		}
		if diff := cmp.Diff(e.records, out); diff != "" {
			t.Errorf("from memory and from the file differ: %s", diff)
		}
		for i := range out {
			if !bytes.Equal(out[i].Public, in[i].Public) || !bytes.Equal(out[i].Private, in[i].Private) ||
				!bytes.Equal(out[i].Salt, in[i].Salt) || out[i].Sequence != in[i].Sequence {
				t.Errorf("record %d: %+v, want %+v", i, out[i], in[i])
			}
		}
		last, ok := h.lastHash()
		if n := len(out); !ok || h.last() != out[n-1].Sequence || last != out[n-1].Hash || string(h.run) != "run" {
			t.Errorf("end of the append: %d %x", h.last(), last)
		}
		after := in[0].Sequence + uint64(len(in)/2)
		part, _ := h.records(nil, "run", pos, after)
		for i := range part {
			if part[i].Sequence != after+1+uint64(i) {
				t.Errorf("after %d: sequence %d at %d", after, part[i].Sequence, i)
			}
		}
	})
}

// TestIndexChunks: a chunk decodes to what was encoded, and from finds the append
// of each sequence.
func TestIndexChunks(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		r := ref{rapid.Uint64Range(1, 1000).Draw(t, "first"), Position(rapid.Uint64Range(1, 1<<50).Draw(t, "position"))}
		refs := []ref{r}
		for range rapid.IntRange(0, 50).Draw(t, "more") {
			r.first += rapid.Uint64Range(1, 9).Draw(t, "events")
			r.pos += Position(rapid.Uint64Range(1, 1<<20).Draw(t, "step"))
			refs = append(refs, r)
		}
		got, ok := decodeChunk(nil, refs[0].first, encodeChunk(refs))
		if !ok || !slices.Equal(got, refs) {
			t.Fatalf("decoded %v, want %v", got, refs)
		}
		for sequence := refs[0].first - 1; sequence <= r.first+2; sequence++ {
			rest, covered := from(refs, sequence)
			if covered != (sequence >= refs[0].first) {
				t.Fatalf("sequence %d covered: %v", sequence, covered)
			}
			if covered && (rest[0].first > sequence || len(rest) > 1 && rest[1].first <= sequence) {
				t.Fatalf("sequence %d found at %v", sequence, rest[0])
			}
		}
	})
}

// FuzzStoredValues feeds the decoders what a damaged file may hold, with a good
// checksum: they must refuse or decode, not panic.
func FuzzStoredValues(f *testing.F) {
	e := encode("run", Digest{1}, []Record{{Sequence: 1, Public: []byte("public"), Private: []byte("private"), Salt: []byte("salt")}, {Sequence: 2}})
	f.Add(e.value, 40)
	f.Add(e.private, 0)
	f.Add(encodeChunk([]ref{{1, 2}, {3, 4}}), 0)
	f.Fuzz(func(t *testing.T, value []byte, split int) {
		if len(value) < sumSize+4 {
			return
		}
		value = bytes.Clone(value)
		header := sumSize + 4 + min(max(split, 0), len(value)-sumSize-4)
		binary.BigEndian.PutUint32(value[sumSize:], uint32(header-sumSize-4))
		seal(value[:header])
		if h, ok := decodeHeader(value); ok {
			records, _ := h.records(nil, "run", 1, 0)
			if len(records) > h.count {
				t.Errorf("%d records of %d", len(records), h.count)
			}
			h.lastHash()
		}
		seal(value)
		decodePrivate(value, make([]Record, 3))
		decodeChunk(nil, 1, value)
	})
}

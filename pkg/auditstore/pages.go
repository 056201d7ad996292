package auditstore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"os"
	"slices"
	"sync/atomic"

	"go.etcd.io/bbolt"
)

// checkPages checks all pages of the file. bbolt's own check runs in a goroutine
// of its own, where a fault would end the process, and trusts what pages say of
// themselves: so that is looked at first, in the file rather than in the map.
func checkPages(tx *bbolt.Tx, path string) error {
	err := checkBounds(tx, path)
	for i := 0; i < len(buckets) && err == nil; i++ {
		err = tx.Bucket(buckets[i]).ForEach(touch)
	}
	if err == nil {
		for e := range tx.Check() { // to the end, or its goroutine would hang
			if err == nil {
				err = e
			}
		}
	}
	if err != nil {
		return fmt.Errorf("%w; %s: %w", err, advice, ErrCorrupt)
	}
	return nil
}

// touch faults if a key or value is not in the file.
func touch(k, v []byte) error {
	if len(k) == 0 {
		return errors.New("empty key")
	}
	sum := k[0] + k[len(k)-1]
	if len(v) > 0 {
		sum += v[0] + v[len(v)-1]
	}
	touched.Store(uint32(sum))
	return nil
}

// touched keeps the compiler from dropping what touch reads.
var touched atomic.Uint32

// Layout of a page of bbolt, in the byte order of the machine: a header, then
// elements, then what they point to.
const (
	pageHeader  = 16 // id 8, flags 2, count 2, overflow 4
	elementSize = 16 // branch: offset 4, key size 4, page 8; leaf: flags 4, offset 4, key size 4, value size 4
	bucketValue = 16 // least size of a leaf value that is a bucket
)

// boundsChecker looks at each page for itself.
type boundsChecker struct {
	file     *os.File
	pageSize int
	end      uint64   // the first page that is not in use
	pointed  []uint64 // bit set of the pages something points to
}

// checkBounds checks that no page, and nothing in one, reaches beyond its end,
// and that no two point to the same page, so that all can be walked safely.
func checkBounds(tx *bbolt.Tx, path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	pageSize := tx.DB().Info().PageSize
	end := uint64(tx.Size()) / uint64(pageSize)
	c := &boundsChecker{file: file, pageSize: pageSize, end: end, pointed: make([]uint64, end/bits.UintSize+1)}
	if err := c.point(uint64(tx.Cursor().Bucket().RootPage())); err != nil {
		return err
	}
	for _, name := range buckets {
		if root := uint64(tx.Bucket(name).RootPage()); root != 0 { // 0: it lies within the page of its parent
			if err := c.point(root); err != nil {
				return fmt.Errorf("bucket %s: %w", name, err)
			}
		}
	}
	for id := uint64(0); id < end; id++ {
		p, err := tx.Page(int(id))
		if err != nil {
			return err
		}
		if p.Type == "free" {
			continue
		}
		if uint64(p.OverflowCount) >= end-id {
			return fmt.Errorf("page %d reaches beyond the end", id)
		}
		if err := c.page(id, p.Type, p.Count, p.OverflowCount); err != nil {
			return fmt.Errorf("page %d: %w", id, err)
		}
		id += uint64(p.OverflowCount)
	}
	return nil
}

// point notes that something points to a page.
func (c *boundsChecker) point(id uint64) error {
	if id < 2 || id >= c.end {
		return fmt.Errorf("points to page %d of %d", id, c.end)
	}
	word, bit := &c.pointed[id/bits.UintSize], uint64(1)<<(id%bits.UintSize)
	if *word&bit != 0 {
		return fmt.Errorf("points to page %d, as another does", id)
	}
	*word |= bit
	return nil
}

// page checks the elements of one page.
func (c *boundsChecker) page(id uint64, kind string, count, overflow int) error {
	if kind != "branch" && kind != "leaf" {
		return nil
	}
	size := uint64(overflow+1) * uint64(c.pageSize)
	if pageHeader+uint64(count)*elementSize > size {
		return fmt.Errorf("%d elements do not fit", count)
	}
	elements := make([]byte, count*elementSize)
	at := int64(id)*int64(c.pageSize) + pageHeader
	if _, err := c.file.ReadAt(elements, at); err != nil {
		return err
	}
	for i := range count {
		e := elements[i*elementSize:]
		word := func(n int) uint64 { return uint64(binary.NativeEndian.Uint32(e[4*n:])) }
		offset := uint64(i) * elementSize // what an element's own offset counts from
		if kind == "branch" {
			if pageHeader+offset+word(0)+word(1) > size {
				return fmt.Errorf("key %d reaches beyond the page", i)
			}
			if err := c.point(binary.NativeEndian.Uint64(e[8:])); err != nil {
				return fmt.Errorf("element %d %w", i, err)
			}
			continue
		}
		if pageHeader+offset+word(1)+word(2)+word(3) > size {
			return fmt.Errorf("value %d reaches beyond the page", i)
		}
		if word(0) != 0 {
			if err := c.bucket(at+int64(offset+word(1)), word(2), word(3)); err != nil {
				return err
			}
		}
	}
	return nil
}

// bucket checks an element that says it is a bucket: only those of the format are.
func (c *boundsChecker) bucket(at int64, keySize, valueSize uint64) error {
	name := make([]byte, min(keySize, MaxName))
	if _, err := c.file.ReadAt(name, at); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	known := slices.ContainsFunc(buckets, func(b []byte) bool { return string(b) == string(name) })
	if !known || valueSize < bucketValue {
		return fmt.Errorf("value %q is taken for a bucket", name)
	}
	return nil
}

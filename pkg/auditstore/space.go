package auditstore

import (
	"errors"
	"io/fs"
	"math"
	"strings"

	berrors "go.etcd.io/bbolt/errors"
	"golang.org/x/sys/unix"
)

// growStep is by how much bbolt makes the file grow. It counts the next step
// against the largest size before it takes it.
const growStep = 16 << 20

// Full reports whether there is too little space for anything but appends with
// Append.Reserve. It turns false by itself once there is space.
func (s *Store) Full() bool {
	return !s.readOnly && s.space() < max(s.opts.Reserve, s.tooLittle.Load())
}

// space returns the bytes left, on the disk and up to the largest size. Free pages
// of the file count as space. If the disk cannot be asked, the commit will tell.
func (s *Store) space() int64 {
	stats := s.db.Stats()
	left := int64(math.MaxInt64)
	free := int64(stats.FreePageN+stats.PendingPageN) * s.pageSize
	if s.opts.MaxSize > 0 {
		left = s.opts.MaxSize - growStep - s.pages.Load() + free
	}
	var st unix.Statfs_t
	if unix.Statfs(s.dir, &st) == nil {
		left = min(left, int64(st.Bavail)*int64(st.Bsize)+free) //nolint:unconvert // not the same type everywhere
	}
	return left
}

// noSpace reports whether a commit failed for want of space before anything of it
// could become visible. A failed sync is never that: what it lost is unknown.
func noSpace(err error) bool {
	if errors.Is(err, berrors.ErrMaxSizeReached) {
		return true
	}
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		write, ok := errors.AsType[*fs.PathError](err) // a failed sync comes without
		return ok && write.Op == "write"
	}
	// bbolt does not wrap the error of growing the file.
	text := err.Error()
	return strings.HasPrefix(text, "file resize error:") &&
		(strings.HasSuffix(text, unix.ENOSPC.Error()) || strings.HasSuffix(text, unix.EDQUOT.Error()))
}

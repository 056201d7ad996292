package auditstore

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"go.etcd.io/bbolt"
	"golang.org/x/sys/unix"
)

// The files of a data directory.
const (
	fileName = "log.db"
	newName  = "log.db.new" // being created
	badName  = "log.db.unfinished"
	markName = "format"
	lockName = "lock"
)

// checkDir refuses a directory that cannot be trusted with the log, and creates
// one that is missing.
func checkDir(dir string, create, anyFS bool) error {
	if create {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	switch {
	case info.Mode()&fs.ModeSymlink != 0:
		return fmt.Errorf("%s is a symbolic link, name the directory itself: %w", dir, ErrUnsafe)
	case !info.IsDir():
		return fmt.Errorf("%s is not a directory: %w", dir, ErrUnsafe)
	case info.Mode().Perm()&0o022 != 0:
		return fmt.Errorf("%s may be written by others (mode %04o), chmod 0700 it: %w", dir, info.Mode().Perm(), ErrUnsafe)
	}
	if anyFS {
		return nil
	}
	name, err := networkFS(dir)
	if err != nil {
		return err
	}
	if name != "" {
		return fmt.Errorf("%s is on a network file system (%s), whose locks and syncs cannot be trusted: %w", dir, name, ErrUnsafe)
	}
	return nil
}

// checkFile refuses a file that is no plain file of ours alone. A missing file is
// fine.
func checkFile(path string) (size int64, exists bool, err error) {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return 0, false, nil
	case err != nil:
		return 0, false, err
	case !info.Mode().IsRegular():
		return 0, false, fmt.Errorf("%s is not a plain file: %w", path, ErrUnsafe)
	case info.Mode().Perm()&0o022 != 0:
		return 0, false, fmt.Errorf("%s may be written by others (mode %04o), chmod 0600 it: %w", path, info.Mode().Perm(), ErrUnsafe)
	}
	return info.Size(), true, nil
}

// lockDir takes the lock of the directory. bbolt locks its file too; this lock
// also covers the creation of the file, and tells who has it.
func lockDir(dir string, shared bool, timeout time.Duration) (*os.File, error) {
	path := filepath.Join(dir, lockName)
	how, flags := unix.LOCK_EX, os.O_RDWR|os.O_CREATE
	if shared {
		how, flags = unix.LOCK_SH, os.O_RDONLY
	}
	f, err := os.OpenFile(path, flags|unix.O_NOFOLLOW, 0o600)
	if shared && errors.Is(err, fs.ErrNotExist) {
		return nil, nil // never opened for writing here; bbolt's own lock has to do
	}
	if err != nil {
		return nil, err
	}
	for deadline := time.Now().Add(timeout); ; time.Sleep(20 * time.Millisecond) {
		err = unix.Flock(int(f.Fd()), how|unix.LOCK_NB)
		if err == nil {
			break
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
		}
		if time.Now().After(deadline) {
			holder := "another process"
			if b, _ := os.ReadFile(path); len(b) > 0 && len(b) < 32 {
				holder = "process " + strings.TrimSpace(string(b))
			}
			return nil, errors.Join(fmt.Errorf("%s is held by %s; stop it, or use another data directory: %w", path, holder, ErrLocked), f.Close())
		}
	}
	if shared {
		return f, nil
	}
	if err = f.Truncate(0); err == nil {
		_, err = fmt.Fprintln(f, os.Getpid())
	}
	if err != nil {
		unlock(f)
		return nil, fmt.Errorf("write %s: %w", path, err)
	}
	return f, nil
}

// unlock lets go of the lock. The file stays, so that two processes never hold
// locks of two different files.
func unlock(f *os.File) {
	if f != nil {
		_ = f.Close()
	}
}

// prepareFile makes sure that there is a complete file: it creates one where
// there was none yet. Called with the lock held.
func prepareFile(dir string, readOnly bool, log *slog.Logger) error {
	path := filepath.Join(dir, fileName)
	size, exists, err := checkFile(path)
	if err != nil {
		return err
	}
	_, marked, err := checkFile(filepath.Join(dir, markName))
	if err != nil {
		return err
	}
	switch {
	case marked && !exists:
		return fmt.Errorf("%s is gone though the log was created; %s: %w", path, advice, ErrCorrupt)
	case marked && size == 0:
		return fmt.Errorf("%s is empty though the log was created; %s: %w", path, advice, ErrCorrupt)
	case marked:
		return nil
	case readOnly && !exists:
		return fmt.Errorf("no log in %s: %w", dir, ErrNotFound)
	case readOnly:
		return nil
	case exists && readable(path):
		return nil // a crash came before the mark
	case exists:
		// Nothing can have been recorded in it: the mark is written before the
		// first open ends. It is kept for the curious all the same.
		log.Warn("log file was never completed, creating it anew", "kept_as", badName, "dir", dir)
		if err := os.Rename(path, filepath.Join(dir, badName)); err != nil {
			return err
		}
	}
	return createFile(dir)
}

// readable reports whether bbolt can open the file at all.
func readable(path string) bool {
	o, err := (*Options)(nil).withDefaults()
	if err != nil {
		return false
	}
	db, err := openBolt(path, &o, true)
	if err != nil {
		return false
	}
	return db.Close() == nil
}

// createFile makes the file under another name and renames it, so that there is
// either no file or a complete one.
func createFile(dir string) (err error) {
	temp := filepath.Join(dir, newName)
	if err := os.Remove(temp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	db, err := bbolt.Open(temp, 0o600, &bbolt.Options{Timeout: time.Second, FreelistType: bbolt.FreelistMapType})
	if err != nil {
		return fmt.Errorf("create: %w", err)
	}
	err = errors.Join(db.Update(initialise), db.Sync(), db.Close())
	if err == nil {
		err = os.Rename(temp, filepath.Join(dir, fileName))
	}
	if err != nil {
		return fmt.Errorf("create: %w", errors.Join(err, os.Remove(temp)))
	}
	return syncDir(dir)
}

func initialise(tx *bbolt.Tx) error {
	for _, name := range buckets {
		if _, err := tx.CreateBucket(name); err != nil {
			return err
		}
	}
	var id [16]byte
	var key [32]byte
	_, _ = rand.Read(id[:]) // never fails
	_, _ = rand.Read(key[:])
	meta := tx.Bucket(bucketMeta)
	return errors.Join(
		meta.Put(metaFormat, binary.BigEndian.AppendUint32(nil, formatVersion)),
		meta.Put(metaID, []byte(hex.EncodeToString(id[:]))),
		meta.Put(metaDigestKey, key[:]),
		meta.Put(metaOpens, be64(0)),
		meta.Put(metaIndexed, be64(0)),
	)
}

// checkMark compares the mark with the log, and writes it if it is missing.
func checkMark(dir, id string, readOnly bool) error {
	path := filepath.Join(dir, markName)
	want := fmt.Appendf(nil, "runnerd log, format %d, id %s\n", formatVersion, id)
	have, err := os.ReadFile(path)
	switch {
	case err == nil && bytes.Equal(have, want):
		return nil
	case err == nil:
		return fmt.Errorf("%s says %q but the log is %q; put back the file that belongs there: %w", path, have, want, ErrCorrupt)
	case !errors.Is(err, fs.ErrNotExist):
		return err
	case readOnly:
		return nil
	}
	temp := path + ".new"
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(want)
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(temp, path)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return syncDir(dir)
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

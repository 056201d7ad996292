package auditstore

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"
	"golang.org/x/sys/unix"
)

// Options are the settings of a store. The zero value, or nil, means the defaults.
type Options struct {
	// LockTimeout is how long Open waits for another process to let go. Default 2 s.
	LockTimeout time.Duration
	// InitialMmapSize is the address space set aside for the file, in bytes. A file
	// that grows past it makes the writer wait for all readers once. Default 4 GiB.
	InitialMmapSize int
	// MaxSize bounds the file in bytes, 0: only the disk does. The last 16 MiB are
	// lost to the steps the file grows in, so it has to be more than that and Reserve.
	MaxSize int64
	// Reserve is the space in bytes kept for appends with Append.Reserve. Default 16 MiB.
	Reserve int64
	// RingBytes and RingAppends bound the newest appends kept in memory for
	// readers. Defaults 4 MiB and 65,536.
	RingBytes, RingAppends int
	// BatchBytes bounds what one transaction takes, though it takes at least one
	// request. Default 8 MiB.
	BatchBytes int
	// IndexEvery is how many appends wait before the index is written, and about
	// how many are read again after a crash. Default 4096.
	IndexEvery int
	// Heads is how many heads of runs are remembered. Default 65,536.
	Heads int
	// AllowNetworkFS opens a log on a file system whose locks or syncs are not
	// known to hold.
	AllowNetworkFS bool
	// Logger gets what an operator should know. Default: slog.Default().
	Logger *slog.Logger
}

// defaultMmap is 4 GiB, or 256 MiB where addresses have 32 bits.
const defaultMmap = 1 << (28 + 4*(^uint(0)>>63))

func (o *Options) withDefaults() (Options, error) {
	var v Options
	if o != nil {
		v = *o
	}
	setDefault(&v.LockTimeout, 2*time.Second)
	setDefault(&v.InitialMmapSize, defaultMmap)
	setDefault(&v.Reserve, 16<<20)
	setDefault(&v.RingBytes, 4<<20)
	setDefault(&v.RingAppends, 1<<16)
	setDefault(&v.BatchBytes, 8<<20)
	setDefault(&v.IndexEvery, 4096)
	setDefault(&v.Heads, 1<<16)
	if v.Logger == nil {
		v.Logger = slog.Default()
	}
	if v.MaxSize != 0 && v.MaxSize <= growStep+v.Reserve {
		return v, fmt.Errorf("max size %d: must be over %d: %w", v.MaxSize, growStep+v.Reserve, ErrInvalid)
	}
	return v, nil
}

func setDefault[T int | int64 | time.Duration](v *T, d T) {
	if *v <= 0 {
		*v = d
	}
}

// Store is a log and its blobs in one bbolt file. It implements [Log] and [Blobs].
type Store struct {
	opts     Options
	dir      string
	db       *bbolt.DB
	lock     *os.File
	readOnly bool

	id        string
	digestKey []byte
	start     uint64 // which open of the file this is

	queue  queue
	done   chan struct{} // closed when the writer has ended
	closed chan struct{}
	once   sync.Once

	// durable is held by the writer while it commits, and by readers while they
	// begin a transaction: between writing and syncing the meta page bbolt would
	// show them what may still be lost.
	durable sync.RWMutex

	poison   atomic.Pointer[error]
	poisoned chan struct{}
	stuck    atomic.Bool // bbolt panicked, perhaps with its locks held: it cannot be closed
	// tooLittle is the space that the last commit found too small, 0 if it went
	// through.
	tooLittle atomic.Int64
	pageSize  int64
	pages     atomic.Int64 // bytes of the file in use or once used

	mu      sync.RWMutex // guards what follows; only the writer changes head, tails and ring
	head    Position
	indexed Position // bucket index is complete up to here
	tails   tails
	ring    ring
	heads   map[string]head
	wake    chan struct{} // closed at the next commit; nil: nobody waits
	stats   Stats
}

var (
	_ Log   = (*Store)(nil)
	_ Blobs = (*Store)(nil)
)

// Open opens the log in a directory, and creates both if they are not there. It
// checks what a crash may have left: the pages of the file after an unclean end
// (up to 1 GiB), and the hash chain of the newest appends always.
//
// [ErrLocked]: another process has it open. [ErrUnsafe]: the directory or the file
// is a symbolic link, may be written by others, or lies on a network file system.
// [ErrCorrupt]: damaged, or gone though it was created. [ErrFormat]: of another
// version.
func Open(dir string, o *Options) (*Store, error) {
	return open(dir, o, false)
}

// OpenReadOnly opens the log of a stopped daemon for reading. Everything that
// writes returns [ErrUnavailable].
func OpenReadOnly(dir string) (*Store, error) {
	return open(dir, nil, true)
}

func open(dir string, o *Options, readOnly bool) (_ *Store, err error) {
	opts, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	s := &Store{
		opts: opts, dir: dir, readOnly: readOnly,
		done: make(chan struct{}), closed: make(chan struct{}), poisoned: make(chan struct{}),
		tails: tails{}, heads: map[string]head{},
		ring: ring{maxBytes: opts.RingBytes, maxAppends: opts.RingAppends},
	}
	s.queue.ready = make(chan struct{}, 1)
	defer func() {
		if err != nil {
			err = fmt.Errorf("open log in %s: %w", dir, err)
			if s.db != nil {
				err = errors.Join(err, s.db.Close())
			}
			unlock(s.lock)
		}
	}()
	if err := checkDir(dir, !readOnly, opts.AllowNetworkFS); err != nil {
		return nil, err
	}
	if s.lock, err = lockDir(dir, readOnly, opts.LockTimeout); err != nil {
		return nil, err
	}
	if err := prepareFile(dir, readOnly, opts.Logger); err != nil {
		return nil, err
	}
	if s.db, err = openBolt(filepath.Join(dir, fileName), &opts, readOnly); err != nil {
		return nil, err
	}
	if err := s.load(); err != nil {
		return nil, err
	}
	if readOnly {
		close(s.done)
		return s, nil
	}
	go s.write()
	return s, nil
}

// openBolt opens the file. bbolt panics on some damage, and a file that was cut
// short faults when it is touched; then the file has to be closed for it.
func openBolt(path string, o *Options, readOnly bool) (db *bbolt.DB, err error) {
	var file *os.File
	defer func() {
		if db == nil && file != nil {
			_ = unix.Flock(int(file.Fd()), unix.LOCK_UN) // a map that is left would keep it
			_ = file.Close()
		}
	}()
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer catch(&err)
	db, err = bbolt.Open(path, 0o600, &bbolt.Options{
		Timeout:         o.LockTimeout,
		FreelistType:    bbolt.FreelistMapType,
		InitialMmapSize: max(o.InitialMmapSize, int(o.MaxSize)),
		MaxSize:         int(o.MaxSize),
		ReadOnly:        readOnly,
		OpenFile: func(name string, flag int, perm os.FileMode) (_ *os.File, err error) {
			file, err = os.OpenFile(name, flag|unix.O_NOFOLLOW, perm)
			return file, err
		},
	})
	if err != nil {
		return nil, boltOpenError(path, err)
	}
	return db, nil
}

// catch turns a panic of bbolt, or a fault in its map of the file, into an error.
// Deferred by whoever touches the map.
func catch(err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("the file is cut off or damaged, reading it failed (%v): %w", p, ErrCorrupt)
	}
}

// Close writes the index, marks the file as closed well and lets go of it. Calls
// that still wait get [ErrClosed]. A poisoned store is left as it is.
func (s *Store) Close() error {
	var err error
	s.once.Do(func() {
		close(s.closed)
		s.queue.close()
		<-s.done
		if !s.readOnly && s.usable() == nil {
			err = s.finish()
		}
		if s.stuck.Load() {
			return // only the end of the process lets go of the file
		}
		err = errors.Join(err, s.db.Close())
		unlock(s.lock)
	})
	return err
}

// finish is the last commit of a clean end.
func (s *Store) finish() error {
	err := s.db.Update(func(tx *bbolt.Tx) error {
		if err := writeIndex(tx.Bucket(bucketIndex), s.tails, s.indexed); err != nil {
			return err
		}
		meta := tx.Bucket(bucketMeta)
		if err := meta.Put(metaIndexed, be64(uint64(s.head))); err != nil {
			return err
		}
		return meta.Delete(metaOpen)
	})
	if err != nil {
		return fmt.Errorf("mark the log as closed: %w", err)
	}
	return nil
}

// LogID returns the id of the log: 32 hex digits, random, made with it.
func (s *Store) LogID() string { return s.id }

// DigestKey returns a random key of 32 bytes made with the log, and its id. It
// never changes.
func (s *Store) DigestKey() (id string, key []byte) {
	return s.id, append([]byte(nil), s.digestKey...)
}

// Poisoned is closed when a commit failed so that its outcome is unknown. The
// process should exit: only opening the file again tells what is in it.
func (s *Store) Poisoned() <-chan struct{} { return s.poisoned }

// setPoison makes the store refuse everything from now on.
func (s *Store) setPoison(err error) {
	if s.poison.CompareAndSwap(nil, &err) {
		close(s.poisoned)
		s.opts.Logger.Error("log file failed, store stopped", "dir", s.dir, "error", err)
	}
}

// usable returns why the store cannot serve, if it cannot.
func (s *Store) usable() error {
	if err := s.poison.Load(); err != nil {
		return fmt.Errorf("an earlier commit failed (%w): %w", *err, ErrUnavailable)
	}
	return nil
}

func (s *Store) check(ctx context.Context) error {
	select {
	case <-s.closed:
		return ErrClosed
	default:
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return s.usable()
}

// view reads from the file in a transaction that sees only what is durable. fn
// copies out what it needs.
func (s *Store) view(ctx context.Context, fn func(*bbolt.Tx) error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer catch(&err)
	tx, err := s.begin(ctx)
	if err != nil {
		return err
	}
	defer func() {
		if e := tx.Rollback(); e != nil && err == nil {
			err = e
		}
	}()
	return fn(tx)
}

// begin begins a transaction for reading.
func (s *Store) begin(ctx context.Context) (*bbolt.Tx, error) {
	s.durable.RLock()
	defer s.durable.RUnlock()
	if err := s.check(ctx); err != nil {
		return nil, err
	}
	defer func() {
		if p := recover(); p != nil {
			s.stuck.Store(true)
			s.setPoison(fmt.Errorf("begin to read: %v: %w", p, ErrCorrupt))
			panic(p)
		}
	}()
	tx, err := s.db.Begin(false)
	if errors.Is(err, berrors.ErrDatabaseNotOpen) {
		return nil, ErrClosed
	}
	if err != nil {
		return nil, fmt.Errorf("begin to read: %w: %w", err, ErrUnavailable)
	}
	return tx, nil
}

// load reads the file's own values and the newest appends, and counts this open.
func (s *Store) load() (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer catch(&err)
	unclean := false
	s.pageSize = int64(s.db.Info().PageSize)
	err = s.db.View(func(tx *bbolt.Tx) error {
		meta, err := checkFormat(tx)
		if err != nil {
			return err
		}
		s.id = string(meta.Get(metaID))
		s.digestKey = append([]byte(nil), meta.Get(metaDigestKey)...)
		opens, indexed := meta.Get(metaOpens), meta.Get(metaIndexed)
		if len(s.id) != 32 || len(s.digestKey) != 32 || len(opens) != 8 || len(indexed) != 8 {
			return fmt.Errorf("the file's own values are damaged: %w", ErrCorrupt)
		}
		s.start = binary.BigEndian.Uint64(opens)
		s.indexed = Position(binary.BigEndian.Uint64(indexed))
		unclean = meta.Get(metaOpen) != nil
		if unclean && tx.Size() <= maxPageCheck {
			if err := checkPages(tx, s.db.Path()); err != nil {
				return err
			}
		}
		return s.recoverTails(tx)
	})
	if err != nil {
		return err
	}
	if err := checkMark(s.dir, s.id, s.readOnly); err != nil {
		return err
	}
	if s.readOnly {
		return nil
	}
	if unclean {
		s.opts.Logger.Warn("log was not closed, checked it", "dir", s.dir, "appends_read_again", s.head-s.indexed)
	}
	s.start++
	if s.start >= 1<<32 {
		return fmt.Errorf("opened %d times: %w", s.start, ErrFormat)
	}
	return s.db.Update(func(tx *bbolt.Tx) error {
		s.pages.Store(tx.Size())
		meta := tx.Bucket(bucketMeta)
		if err := meta.Put(metaOpen, []byte{1}); err != nil {
			return err
		}
		return meta.Put(metaOpens, be64(s.start))
	})
}

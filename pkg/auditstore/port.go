package auditstore

import "context"

// Limits of the port. They hold for every implementation of [Log] and [Blobs].
const (
	// MaxAppend is the largest append in bytes, all told: records with their
	// private parts and salts, row, keys, body and shared values.
	MaxAppend = 512 << 10
	// MaxKeys is the largest number of keys an append may put and delete together.
	MaxKeys = 64
	// MaxKey is the longest key in bytes.
	MaxKey = 1 << 10
	// MaxName is the longest run id, blob id or owner in bytes.
	MaxName = 256
	// MaxChunk is the largest chunk of a blob in bytes.
	MaxChunk = 512 << 10
	// MaxPage is the most events or rows one page asks for. A limit that is
	// larger, zero or negative means MaxPage.
	MaxPage = 1000
	// RunPrefix begins the key that every run has: RunPrefix + run. The keys
	// below it belong to the store; an append must not put or delete them.
	RunPrefix = "run/"
)

// Epoch numbers the claims of a run. A newer claim has a larger epoch.
//
// In a file the upper 32 bits count the opens of the file and the lower 32 bits
// count the claims of the run since then, so that every claim of an earlier
// process is older than any of this one without a write.
type Epoch uint64

// Start returns the upper part: which open of the store made the claim.
func (e Epoch) Start() uint64 { return uint64(e >> 32) }

// Position is the place of an append among all appends of a log. It strictly
// increases from append to append and need not be dense. All records of an
// append share its position.
//
// A reader that has seen position p is never given a record at or before p that
// it has not seen.
type Position uint64

// Digest is a SHA-256 digest.
type Digest = [32]byte

// Record is one event, as bytes. A record that was read is shared by all its
// readers: neither it nor any of its slices may be changed.
type Record struct {
	Run      string
	Sequence uint64 // per run, 1 and up without gaps; given by the caller

	Position       Position // filled by the store
	PrevHash, Hash Digest   // filled by the store, see [Hash]

	// Public is what the hash chain covers, exactly as stored.
	Public []byte
	// Private is what redaction took from Public, kept beside it. It is nil if
	// redaction changed nothing, and after erasure.
	Private []byte
	// Salt belongs to the digest of Private that Public holds.
	Salt []byte

	// Wire is Public followed by position, prev_hash and hash as protobuf
	// fields, see [AppendTrailer]: the event message as it goes to clients.
	// Filled on read; Public aliases its head.
	Wire []byte
	// Erased says that there was a private part and [Log.Erase] dropped it.
	Erased bool
}

// Claim is the right to append to one run. It belongs to one goroutine. Append
// moves Head and HeadHash; nobody else changes it.
type Claim struct {
	Run, Owner string
	Epoch      Epoch
	Head       uint64 // sequence of the run's last event, 0: none yet
	HeadHash   Digest // hash of that event, zero if there is none
}

// Scope says whose events are read: those of one run, or all.
type Scope struct {
	Run string // empty: all runs
}

// Cursor is a place in a scope. In the scope of a run only Sequence counts: what
// follows are the events with a larger sequence. In the scope of all runs only
// Position counts: what follows are the appends with a larger position.
type Cursor struct {
	Position Position
	Sequence uint64
}

// Row is what [Log.Rows] finds under a key: the run it belongs to, the row of
// that run as last written, and the newest epoch of that run.
type Row struct {
	Key   []byte
	Run   string
	Row   []byte // nil if the run never wrote one
	Epoch Epoch
	// Damage is an [ErrCorrupt] if what is stored of the row does not verify; Row
	// and Epoch are not known then. One bad row hides no other.
	Damage error
}

// Append is what one durable step of a run writes, all or nothing.
//
// The caller must not change any of the slices before Append has returned.
type Append struct {
	// Records follow the head of the claim: sequences Head+1, Head+2, and so on.
	// It may be empty for a run that has an event already; the append then
	// changes only what else is given and takes no position of its own. On
	// success the store fills Run, Position, PrevHash and Hash of each.
	Records []Record
	// Row replaces the row of the run; nil leaves it as it is. It should change
	// only when a run starts, comes to rest, wakes or ends: every change rewrites
	// a page of the run.
	Row []byte
	// Put and Del are index keys that lead to the run. Del comes first. A key that
	// leads to another run is not deleted; Put takes it over.
	Put, Del [][]byte
	// Body is a checkpoint body, nil: none. BodySequence is the sequence it
	// belongs to, 0: that of the last record (or of the head, without records).
	Body         []byte
	BodySequence uint64
	// Shared values are stored once by their SHA-256, whatever run brings them.
	Shared map[Digest][]byte
	// Reserve allows the append into the disk reserve. It is for what must be
	// written even on a full disk: cancels and closing events.
	Reserve bool
}

// Log is all that the engine needs from durable storage. All methods may be
// called from any goroutine.
//
// Errors are wrapped and tested with errors.Is. Every method may return
// [ErrUnavailable], [ErrClosed] and [ErrCorrupt] beside what it names, and the
// error of a context that ended before there was an answer; unless a method says
// otherwise nothing was written then. A call that breaks these rules is refused
// with [ErrInvalid].
type Log interface {
	// Claim makes owner the only writer of a run: once it has returned no append
	// of an older epoch succeeds, not even one in flight. from is the newest epoch
	// of the run, as [Row] tells it or as an own claim holds it, and 0 for a run
	// never seen. Claiming a run that has no event yet is how a run starts. An
	// owner that does not know whether its claim succeeded may repeat it.
	//
	// [ErrFenced]: from is not the newest epoch.
	Claim(ctx context.Context, run, owner string, from Epoch) (*Claim, error)

	// Append adds records after the head of the claim and changes the run's row,
	// keys and body: all or nothing, durable on return. It moves the head of the
	// claim. Without records it returns the newest position.
	//
	// [ErrFenced]: a newer claim exists. [ErrConflict]: the head of the run is not
	// that of the claim. [ErrTooLarge]: over a limit of the port. [ErrFull]: no
	// space, the same append may be repeated. [ErrUnavailable]: surely nothing
	// was written. [ErrUnknown]: it may have been written. A context that ends
	// once writing has begun does not cut it short.
	Append(ctx context.Context, c *Claim, a Append) (Position, error)

	// Read returns the events after a cursor, in order, and the cursor after
	// them. The page is empty, with the cursor unchanged, exactly if there is
	// nothing more; a page below the limit means nothing. limit counts events, and
	// an append that passes it is still whole. In the scope of all runs a page
	// holds whole appends; in the scope of a run it starts at the exact sequence.
	Read(ctx context.Context, s Scope, after Cursor, limit int) ([]Record, Cursor, error)

	// Rows returns the keys that begin with prefix and are larger than after, in
	// order, each with its run's row. Every run with an event has the key
	// RunPrefix + run. It returns nothing exactly if there is nothing more.
	Rows(ctx context.Context, prefix, after []byte, limit int) ([]Row, error)

	// Wait returns once something after the position is durable, with the newest
	// position. It may return early.
	Wait(ctx context.Context, after Position) (Position, error)

	// Head returns the newest position, 0 for an empty log.
	Head(ctx context.Context) (Position, error)

	// Shared returns a shared value, or [ErrNotFound].
	Shared(ctx context.Context, d Digest) ([]byte, error)

	// Body returns the newest checkpoint body of a run at or before a sequence.
	// seq 0: there is none.
	Body(ctx context.Context, run string, atMost uint64) (seq uint64, body []byte, err error)

	// Erase drops private parts, salts, checkpoint bodies and blobs of a run that
	// is done. What is public stays, and so does its hash chain. It may be
	// repeated, and must be if it failed.
	Erase(ctx context.Context, run string) error
}

// Blobs stores what is too big for an event. A blob is a row of chunks.
type Blobs interface {
	// Put stores chunk n of a blob, durable on return; chunks are put in order
	// from 0, and putting one again replaces it.
	//
	// [ErrConflict]: chunk n-1 is not there. [ErrTooLarge]: over [MaxChunk].
	// [ErrFull], [ErrUnavailable], [ErrUnknown]: as for an append.
	Put(ctx context.Context, run, id string, n int, chunk []byte) error

	// Get returns the rest of the chunk that holds the byte at offset. io.EOF: the
	// blob ends at or before offset. [ErrNotFound]: there is no such blob.
	Get(ctx context.Context, run, id string, offset int64) ([]byte, error)

	// Drop removes all blobs of a run.
	Drop(ctx context.Context, run string) error
}

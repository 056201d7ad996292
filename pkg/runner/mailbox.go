package runner

import (
	"sync"

	"google.golang.org/protobuf/proto"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/runner/internal/runstate"
)

// item is what reaches the driver of a run. An item without a fact only makes it look at the run again.
type item struct {
	fact   runstate.Fact
	start  *start                // a StartRun: it becomes the first fact, or is answered with what is there
	read   func(*runstate.State) // looks at the state between two turns
	effect string                // key of the effect that ends with this
	slot   bool                  // the run may be driven now
	reply  chan<- answer         // with room for one; nil: nobody waits
}

// answer is what the bringer of an item hears, once it is durable.
type answer struct {
	reply   runstate.Reply
	run     *runnerdv1.Run // of a start
	existed bool           // of a start
	err     error
}

// answer tells the bringer, at most once.
func (it *item) answer(a answer) {
	if it.reply != nil {
		it.reply <- a
		it.reply = nil
	}
}

// own reports whether the item is the world's answer to the run's own effect, which nobody else can bring again.
func (it *item) own() bool {
	_, restart := it.fact.(runstate.Restart)
	return it.effect != "" || restart
}

const (
	// maxInline bounds what one turn takes in, in bytes of events. An event may stand in its append twice, whole and
	// redacted, so that this keeps an append within the store's limit.
	maxInline = 160 << 10
	// eventRoom is about what the events of a fact take beside the parts that it brings.
	eventRoom = 1 << 10
)

// inlineSize is about how many bytes a fact adds to the events of its turn.
func inlineSize(fact runstate.Fact) int {
	switch f := fact.(type) {
	case nil:
		return 0
	case runstate.Decided:
		return maxInline // an answer stands in two events, and each call of up to 128 has some of its own
	case runstate.CallFinished:
		return eventRoom + resultSize(f.Result)
	case runstate.Input:
		if f.TextRef == nil {
			return eventRoom + len(f.Text)
		}
	case runstate.Vote:
		size := eventRoom + len(f.Reason)
		if f.Result != nil {
			size += resultSize(*f.Result)
		}
		if f.Edited != nil && f.Edited.Ref == nil {
			size += len(f.Edited.Text)
		}
		return size
	case runstate.Revoke:
		return eventRoom + len(f.Reason)
	}
	return eventRoom
}

func resultSize(r runstate.Result) int {
	size := len(r.Text) + len(r.StructuredJSON)
	for _, ref := range r.Artifacts {
		size += proto.Size(ref)
	}
	return size
}

// mailbox holds what came while the driver was busy.
type mailbox struct {
	ready chan struct{} // has room for one: something is there

	mu     sync.Mutex
	items  []item
	closed bool
}

func newMailbox() *mailbox { return &mailbox{ready: make(chan struct{}, 1)} }

// put adds an item and reports whether it did: nothing reaches a driver that has ended.
func (m *mailbox) put(it item) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return false
	}
	m.items = append(m.items, it)
	m.signal()
	return true
}

func (m *mailbox) signal() {
	select {
	case m.ready <- struct{}{}:
	default:
	}
}

// take returns at most limit items in order, as many as fit into one turn; the rest stay.
func (m *mailbox) take(limit int) []item {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, inline := 0, 0
	for n < min(len(m.items), limit) {
		inline += inlineSize(m.items[n].fact)
		if n > 0 && inline > maxInline {
			break
		}
		n++
	}
	taken := m.items[:n:n]
	m.items = m.items[n:]
	if len(m.items) == 0 {
		m.items = nil
	} else {
		m.signal()
	}
	return taken
}

// close ends the mailbox if it is empty and reports whether it is closed.
func (m *mailbox) close() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = m.closed || len(m.items) == 0
	return m.closed
}

// fail closes the mailbox and returns what is in it.
func (m *mailbox) fail() []item {
	m.mu.Lock()
	defer m.mu.Unlock()
	items := m.items
	m.items, m.closed = nil, true
	return items
}

// batch is what one turn takes in.
type batch []item

// facts returns the facts of the batch in order.
func (b batch) facts() []runstate.Fact {
	facts := make([]runstate.Fact, 0, len(b))
	for i := range b {
		if b[i].fact != nil {
			facts = append(facts, b[i].fact)
		}
	}
	return facts
}

// answer gives each bringer its reply. What stands at a sequence past the head was held back.
func (b batch) answer(replies []runstate.Reply, head uint64) {
	for i := range b {
		var a answer
		if b[i].fact != nil {
			a.reply, replies = replies[0], replies[1:]
			if a.err = a.reply.Err; a.reply.Sequence > head {
				a = answer{err: errDraining()}
			}
		}
		b[i].answer(a)
	}
}

// fail tells every bringer why nothing was recorded.
func (b batch) fail(err error) {
	for i := range b {
		b[i].answer(answer{err: err})
	}
}

// keepOwn drops what somebody else can bring again and returns the rest.
func (b batch) keepOwn() batch {
	kept := b[:0]
	for i := range b {
		if b[i].own() {
			kept = append(kept, b[i])
		}
	}
	return kept
}

func errDraining() *Error {
	return errorf(runnerdv1.ErrorReason_ERROR_REASON_DRAINING, "the daemon is stopping")
}

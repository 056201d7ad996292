package runner

// slots counts the runs that may be driven at a time. Runs that find none stay QUEUED, in the order in which they
// came, as nothing but their ids. A run that was driven once needs no slot again: people who wake a run do not wait.
//
// It is guarded by the runner's mutex.
type slots struct {
	free   int
	queue  []string
	queued map[string]bool
}

// takeSlot takes a slot for the engine's run, or puts the run into the queue.
func (e *engine) takeSlot() bool {
	r := e.r
	r.mu.Lock()
	defer r.mu.Unlock()
	s := &r.slots
	if s.free > 0 && len(s.queue) == 0 {
		s.free--
		e.slot = true
		return true
	}
	s.enqueue(e.run)
	return false
}

func (s *slots) enqueue(run string) {
	if s.queued[run] {
		return
	}
	if s.queued == nil {
		s.queued = make(map[string]bool)
	}
	s.queued[run] = true
	s.queue = append(s.queue, run)
}

// releaseSlot gives a slot back and passes it to the run that has waited longest.
func (r *Runner) releaseSlot() {
	r.mu.Lock()
	r.slots.free++
	r.mu.Unlock()
	r.dispatch()
}

// dispatch gives the free slots to the runs that have waited longest. A run that needs none any more, because it was
// cancelled, gives it back.
func (r *Runner) dispatch() {
	for {
		r.mu.Lock()
		s := &r.slots
		if s.free <= 0 || len(s.queue) == 0 {
			r.mu.Unlock()
			return
		}
		run := s.queue[0]
		s.queue = s.queue[1:]
		delete(s.queued, run)
		s.free--
		r.mu.Unlock()
		if !r.put(run, item{slot: true}) {
			return // stopping: the next start queues it again
		}
	}
}

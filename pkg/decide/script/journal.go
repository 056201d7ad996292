package script

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// Journal writes down every request that a service got, as JSON lines. A nil Journal writes nothing.
type Journal struct {
	mu sync.Mutex
	w  io.Writer
}

// NewJournal makes a journal that writes each line with one Write.
func NewJournal(w io.Writer) *Journal { return &Journal{w: w} }

// JournalEntry is one line of a journal.
type JournalEntry struct {
	Time    time.Time
	Request *runnerdv1.DecideRequest
}

type journalLine struct {
	Time    time.Time       `json:"time"`
	Request json.RawMessage `json:"request"`
}

func (j *Journal) write(req *runnerdv1.DecideRequest) error {
	if j == nil {
		return nil
	}
	body, err := protojson.Marshal(req)
	if err != nil {
		return err
	}
	line, err := json.Marshal(journalLine{time.Now().UTC(), body})
	if err != nil {
		return err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	_, err = j.w.Write(append(line, '\n'))
	return err
}

// ReadJournal reads the journal file of a service that may still run or was killed: a last line that is not whole is
// left out. A file that does not exist is an empty journal.
func ReadJournal(path string) ([]JournalEntry, error) {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var entries []JournalEntry
	in := bufio.NewReader(f)
	for n := 1; ; n++ {
		line, err := in.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return entries, nil
		}
		if err != nil {
			return nil, err
		}
		var l journalLine
		e := JournalEntry{Request: new(runnerdv1.DecideRequest)}
		if err := json.Unmarshal(bytes.TrimSpace(line), &l); err != nil {
			return nil, fmt.Errorf("%s: line %d: %w", path, n, err)
		}
		if err := protojson.Unmarshal(l.Request, e.Request); err != nil {
			return nil, fmt.Errorf("%s: line %d: %w", path, n, err)
		}
		e.Time = l.Time
		entries = append(entries, e)
	}
}

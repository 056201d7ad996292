package toolhost

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

// Phases of a call in a ledger file.
const (
	// PhaseBegin: the call is about to be executed.
	PhaseBegin = "begin"
	// PhaseEffect: the effect of the call is about to happen. Only handlers that call LocalLedger.Effect note it.
	PhaseEffect = "effect"
	// PhaseEnd: the call has an outcome, or is known to have none.
	PhaseEnd = "end"
	// PhaseRepeat: the call came again and was answered by the first outcome. Nothing was executed.
	PhaseRepeat = "repeat"
	// PhaseReject: the call came although its attempt had been given up. Nothing was executed.
	PhaseReject = "reject"
	// PhaseRefuse: GetCall was told that the key is not executed up to this attempt.
	PhaseRefuse = "refuse"
)

// Record is one line of a ledger file.
type Record struct {
	Time    time.Time `json:"time"`
	Phase   string    `json:"phase"`
	Key     string    `json:"idempotency_key"`
	Attempt uint32    `json:"attempt"`
	RunID   string    `json:"run_id,omitempty"`
	CallID  string    `json:"call_id,omitempty"`
	Tool    string    `json:"tool,omitempty"`
	// Arguments is the JSON text as it came, to the byte.
	Arguments string `json:"arguments,omitempty"`
	// State is what became of an ended call: finished, not_executed or open.
	State string `json:"state,omitempty"`
	// Result of a finished call, in protobuf's JSON form.
	Result json.RawMessage `json:"result,omitempty"`
}

// ReadLedger reads a ledger file, also while a host writes it or after one was killed: a last line that is not whole
// is left out. A file that does not exist is an empty ledger.
func ReadLedger(path string) ([]Record, error) {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var records []Record
	_, err = scanLedger(f, func(r Record, _, _ int64) error {
		records = append(records, r)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return records, nil
}

// scanLedger hands on each whole line with its place and length, and returns where they end.
func scanLedger(r io.Reader, each func(r Record, offset, size int64) error) (end int64, err error) {
	in := bufio.NewReader(r)
	for n := 1; ; n++ {
		line, err := in.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return end, nil
		}
		if err != nil {
			return end, err
		}
		var rec Record
		if err := json.Unmarshal(bytes.TrimSpace(line), &rec); err != nil {
			return end, fmt.Errorf("line %d: %w", n, err)
		}
		if err := each(rec, end, int64(len(line))); err != nil {
			return end, fmt.Errorf("line %d: %w", n, err)
		}
		end += int64(len(line))
	}
}

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"

	"google.golang.org/protobuf/encoding/protojson"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/auditstore"
)

// A witness is the head of a run that was kept elsewhere. It tells what the
// file alone cannot: that the chain as a whole was computed anew, or cut.

// readWitness reads what audit head --output json printed.
func readWitness(file string) (*runnerdv1.GetHeadResponse, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, usageError{fmt.Errorf("--witness: %w", err)}
	}
	head := &runnerdv1.GetHeadResponse{}
	if err := protojson.Unmarshal(text, head); err != nil {
		return nil, usageError{fmt.Errorf("--witness %s: %w", file, err)}
	}
	if head.GetSequence() == 0 || len(head.GetHash()) == 0 {
		return nil, usageError{fmt.Errorf("--witness %s: it is not the head of a run: see runnerd audit head --help", file)}
	}
	return head, nil
}

// testify compares a run with its witness. The error says in what they differ.
func testify(witness *runnerdv1.GetHeadResponse, run, logID string, hash []byte) error {
	switch {
	case logID != witness.GetLogId():
		return fmt.Errorf("the witness is of log %s, this is log %s", witness.GetLogId(), logID)
	case hash == nil:
		return fmt.Errorf("run %s, event %d: the witness has seen this event, and it is gone", run, witness.GetSequence())
	case !bytes.Equal(hash, witness.GetHash()):
		return fmt.Errorf("run %s, event %d: it is not the event that the witness has seen", run, witness.GetSequence())
	}
	return nil
}

// witnessed asks a daemon for the event that a witness has seen.
func (c *client) witnessed(ctx context.Context, run string, witness *runnerdv1.GetHeadResponse) error {
	ctx, cancel := call(ctx)
	defer cancel()
	head, err := c.audit.GetHead(ctx, &runnerdv1.GetHeadRequest{RunId: run})
	if err != nil {
		return err
	}
	if head.GetSequence() < witness.GetSequence() {
		return testify(witness, run, head.GetLogId(), nil)
	}
	events, err := c.StreamEvents(ctx, &runnerdv1.StreamEventsRequest{
		Scope: &runnerdv1.StreamEventsRequest_RunId{RunId: run}, AfterSequence: new(witness.GetSequence() - 1),
	})
	if err != nil {
		return err
	}
	msg, err := events.Recv()
	if err != nil {
		return err
	}
	return testify(witness, run, head.GetLogId(), msg.GetEvent().GetHash())
}

// witnessedIn looks for the event in the log of a stopped daemon.
func witnessedIn(ctx context.Context, store *auditstore.Store, run string, witness *runnerdv1.GetHeadResponse) error {
	page, _, err := store.Read(ctx, auditstore.Scope{Run: run}, auditstore.Cursor{Sequence: witness.GetSequence() - 1}, 1)
	if err != nil && !errors.Is(err, auditstore.ErrCorrupt) {
		return err
	}
	if len(page) == 0 || page[0].Sequence != witness.GetSequence() {
		return testify(witness, run, store.LogID(), nil)
	}
	return testify(witness, run, store.LogID(), page[0].Hash[:])
}

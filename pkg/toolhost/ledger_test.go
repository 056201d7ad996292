package toolhost_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/toolhost"
)

func openLedger(t *testing.T, path string) *toolhost.LocalLedger {
	t.Helper()
	l, err := toolhost.OpenLedger(path)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func attempt(key string, n uint32) *runnerdv1.CallToolRequest {
	return &runnerdv1.CallToolRequest{RunId: "r", CallId: "1.0", Name: "t", IdempotencyKey: key, Attempt: n, ArgumentsJson: `{"a":"<ü>"}`}
}

func question(key string, n uint32) *runnerdv1.GetCallRequest {
	return &runnerdv1.GetCallRequest{IdempotencyKey: key, Attempt: n}
}

// begin begins the first attempt of a call and fails unless the ledger lets it be executed.
func begin(t *testing.T, l toolhost.Ledger, key string) {
	t.Helper()
	e, err := l.Begin(t.Context(), attempt(key, 1))
	if err != nil || (e.State != toolhost.CallUnseen && e.State != toolhost.CallOpen) {
		t.Fatalf("begin %s: %v, %v", key, e, err)
	}
}

func wantState(t *testing.T, l toolhost.Ledger, key string, n uint32, want toolhost.CallState) toolhost.Entry {
	t.Helper()
	e, err := l.Get(t.Context(), question(key, n))
	if err != nil || e.State != want {
		t.Fatalf("get %s attempt %d: state %v, %v; want %v", key, n, e.State, err, want)
	}
	return e
}

func TestLedgerFileOutlivesItsProcess(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "ledger")
	l := openLedger(t, path)
	begin(t, l, "finished")
	wantState(t, l, "finished", 1, toolhost.CallRunning)
	if err := l.End(t.Context(), attempt("finished", 1), toolhost.Entry{State: toolhost.CallFinished, Result: toolhost.Text("r")}); err != nil {
		t.Fatal(err)
	}
	begin(t, l, "cut")
	begin(t, l, "refused by the tool")
	if err := l.End(t.Context(), attempt("refused by the tool", 1), toolhost.Entry{State: toolhost.CallUnseen}); err != nil {
		t.Fatal(err)
	}
	wantState(t, l, "never came", 2, toolhost.CallRefused)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	// The process died while it wrote a line.
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(`{"phase":"begin","idempotency_key":"torn`); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}

	l = openLedger(t, path)
	if e := wantState(t, l, "finished", 1, toolhost.CallFinished); e.Result.GetText() != "r" {
		t.Errorf("result %v", e.Result)
	}
	wantState(t, l, "cut", 1, toolhost.CallOpen)
	wantState(t, l, "refused by the tool", 1, toolhost.CallRefused)
	for n, want := range map[uint32]toolhost.CallState{1: toolhost.CallRefused, 2: toolhost.CallRefused, 3: toolhost.CallUnseen} {
		if e, err := l.Begin(t.Context(), attempt("never came", n)); err != nil || e.State != want {
			t.Errorf("attempt %d after the promise: %v, %v", n, e, err)
		}
	}
	if e, err := l.Begin(t.Context(), attempt("finished", 2)); err != nil || e.State != toolhost.CallFinished {
		t.Errorf("a finished call again: %v, %v", e, err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}

	records, err := toolhost.ReadLedger(path)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range records {
		got = append(got, r.Phase+" "+r.Key+" "+r.State)
		if r.Phase == toolhost.PhaseBegin && r.Arguments != `{"a":"<ü>"}` {
			t.Errorf("arguments %q", r.Arguments)
		}
	}
	reread := got[7:]
	if diff := cmp.Diff([]string{
		"begin finished ", "end finished finished", "begin cut ", "begin refused by the tool ",
		"end refused by the tool not_executed", "refuse never came ", "refuse refused by the tool ",
	}, got[:7]); diff != "" {
		t.Error(diff)
	}
	if !strings.Contains(strings.Join(reread, ";"), "repeat finished") || !strings.Contains(strings.Join(reread, ";"), "reject never came") {
		t.Errorf("after reopening: %q", reread)
	}
}

func TestLedgerFileIsForOneProcess(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "ledger")
	l := openLedger(t, path)
	defer l.Close()
	if second, err := toolhost.OpenLedger(path); err == nil {
		t.Error("opened twice", second.Close())
	}
}

func TestLedgerFileDamaged(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "ledger")
	if err := os.WriteFile(path, []byte("{}\nnonsense\n{}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := toolhost.OpenLedger(path); err == nil || !strings.Contains(err.Error(), "line 2") {
		t.Errorf("open: %v", err)
	}
	if _, err := toolhost.ReadLedger(path); err == nil || !strings.Contains(err.Error(), "line 2") {
		t.Errorf("read: %v", err)
	}
}

func TestReadLedgerWithoutFile(t *testing.T) {
	t.Parallel()
	if records, err := toolhost.ReadLedger(filepath.Join(t.TempDir(), "none")); err != nil || records != nil {
		t.Errorf("%v, %v", records, err)
	}
}

func TestMemoryLedgerPromisesNothing(t *testing.T) {
	t.Parallel()
	l := toolhost.NewMemoryLedger()
	wantState(t, l, "never came", 1, toolhost.CallOpen)
	begin(t, l, "refused")
	if err := l.End(t.Context(), attempt("refused", 1), toolhost.Entry{State: toolhost.CallUnseen}); err != nil {
		t.Fatal(err)
	}
	wantState(t, l, "refused", 1, toolhost.CallOpen)
}

func TestMemoryLedgerForgetsTheOldest(t *testing.T) {
	t.Parallel()
	l := toolhost.NewMemoryLedger()
	big := &toolhost.Result{Text: strings.Repeat("x", 30<<20)}
	for _, key := range []string{"a", "b", "c"} {
		begin(t, l, key)
		if err := l.End(t.Context(), attempt(key, 1), toolhost.Entry{State: toolhost.CallFinished, Result: big}); err != nil {
			t.Fatal(err)
		}
	}
	wantState(t, l, "a", 1, toolhost.CallOpen)
	wantState(t, l, "b", 1, toolhost.CallFinished)
	wantState(t, l, "c", 1, toolhost.CallFinished)
}

func TestKeysAreExecutedOnce(t *testing.T) {
	t.Parallel()
	var executed int
	h := toolhost.NewServer(toolhost.WithLedger(toolhost.NewMemoryLedger()))
	h.Tool(toolhost.Definition{Name: "t", Idempotent: toolhost.Yes}, func(context.Context, *toolhost.Call) (*toolhost.Result, error) {
		executed++
		if executed == 1 {
			return nil, toolhost.Refuse(codes.FailedPrecondition, "not yet")
		}
		return nil, errors.New("failed for good")
	})
	c := connect(t, h)
	if _, err := c.CallTool(t.Context(), "host", attempt("k", 1), maxResult, nil); status.Code(err) != codes.FailedPrecondition {
		t.Fatalf("refused call: %v", err)
	}
	for n := range uint32(3) {
		got, err := c.CallTool(t.Context(), "host", attempt("k", n+2), maxResult, nil)
		if err != nil || got.GetText() != "failed for good" || !got.GetIsError() {
			t.Errorf("attempt %d: %v, %v", n+2, got, err)
		}
	}
	if executed != 2 {
		t.Errorf("executed %d times, want once after the refusal", executed-1)
	}
	got, err := c.GetCall(t.Context(), "host", question("k", 4), maxResult)
	if err != nil || got.GetFinished().GetText() != "failed for good" {
		t.Errorf("GetCall: %v, %v", got, err)
	}
}

func TestRepeatWaitsForTheCallInProgress(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var executed int
		h := toolhost.NewServer(toolhost.WithLedger(toolhost.NewMemoryLedger()))
		h.Tool(toolhost.Definition{Name: "t"}, func(context.Context, *toolhost.Call) (*toolhost.Result, error) {
			executed++
			time.Sleep(time.Minute) // deaf to its context
			return toolhost.Text("done"), nil
		})
		c := connect(t, h)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := c.CallTool(ctx, "host", attempt("k", 1), maxResult, nil); status.Code(err) != codes.DeadlineExceeded {
			t.Fatalf("first attempt: %v", err)
		}
		running, err := c.GetCall(t.Context(), "host", question("k", 1), maxResult)
		if err != nil || running.GetRunning() == nil {
			t.Errorf("GetCall: %v, %v", running, err)
		}
		got, err := c.CallTool(t.Context(), "host", attempt("k", 2), maxResult, nil)
		if err != nil || got.GetText() != "done" || executed != 1 {
			t.Errorf("second attempt: %v, %v, executed %d times", got, err, executed)
		}
	})
}

func TestCancelledCallLeavesItsOutcomeOpen(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "ledger")
		l := openLedger(t, path)
		defer l.Close()
		h := toolhost.NewServer(toolhost.WithLedger(l))
		h.Tool(toolhost.Definition{Name: "t"}, func(ctx context.Context, _ *toolhost.Call) (*toolhost.Result, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		})
		c := connect(t, h)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := c.CallTool(ctx, "host", attempt("k", 1), maxResult, nil); status.Code(err) != codes.DeadlineExceeded {
			t.Fatalf("call: %v", err)
		}
		synctest.Wait()
		got, err := c.GetCall(t.Context(), "host", question("k", 1), maxResult)
		if err != nil || got.GetState() != nil {
			t.Errorf("GetCall: %v, %v; want no state", got, err)
		}
	})
}

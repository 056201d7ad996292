package runner

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/auditstore"
)

// damaged is a log whose records and bodies come out changed.
type damaged struct {
	auditstore.Log
	mu     sync.Mutex
	change func(*auditstore.Record) // nil: not at all
	body   func([]byte) []byte      // nil: not at all
}

func (d *damaged) set(change func(*auditstore.Record), body func([]byte) []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.change, d.body = change, body
}

func (d *damaged) get() (change func(*auditstore.Record), body func([]byte) []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.change, d.body
}

func (d *damaged) Read(ctx context.Context, s auditstore.Scope, after auditstore.Cursor, limit int) ([]auditstore.Record, auditstore.Cursor, error) {
	page, next, err := d.Log.Read(ctx, s, after, limit)
	change, _ := d.get()
	if change == nil {
		return page, next, err
	}
	changed := make([]auditstore.Record, len(page))
	for i, rec := range page {
		rec.Public, rec.Private, rec.Salt = bytes.Clone(rec.Public), bytes.Clone(rec.Private), bytes.Clone(rec.Salt)
		change(&rec)
		changed[i] = rec
	}
	return changed, next, err
}

func (d *damaged) Body(ctx context.Context, run string, atMost uint64) (uint64, []byte, error) {
	seq, body, err := d.Log.Body(ctx, run, atMost)
	if _, change := d.get(); change != nil && seq > 0 {
		body = change(bytes.Clone(body))
	}
	return seq, body, err
}

// rowDamaged is rowFace over a log that can be damaged.
func rowDamaged(t *testing.T, name string, test func(f *face, d *damaged)) {
	t.Helper()
	d := new(damaged)
	rowFace(t, name, func(f *face) { test(f, d) }, func(c *Config, _ *ServerConfig) {
		d.Log = c.Log
		c.Log = d
	})
}

// verify verifies a run, or all, and returns what was found and the summary.
func (f *face) verify(ctx context.Context, run string) (found []string, summary *runnerdv1.AuditSummary, err error) {
	stream, err := f.audit.VerifyAudit(ctx, &runnerdv1.VerifyAuditRequest{RunId: run})
	if err != nil {
		return nil, nil, err
	}
	for {
		resp, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return found, summary, nil
		}
		if err != nil {
			return found, summary, err
		}
		if summary != nil {
			return found, nil, errors.New("something follows the summary")
		}
		if finding := resp.GetFinding(); finding != nil {
			found = append(found, fmt.Sprintf("%s %s/%d", finding.GetCode(), finding.GetRunId(), finding.GetSequence()))
		}
		summary = resp.GetSummary()
	}
}

func TestVerifyAudit(t *testing.T) {
	t.Parallel()
	rowDamaged(t, "T-187 T-177 damage of every kind is found and named", func(f *face, d *damaged) {
		t := f.t
		f.start(f.owner(), "r1", "read:{\"password\":\"hunter2\"}\nfail:{}\nanswer:done")
		head := f.settle("r1").GetHeadSequence()
		f.asked("r2", "deploy:{}\nanswer:done")
		f.start(f.owner(), "r3", "block")
		events := 0
		for _, run := range []string{"r1", "r2", "r3"} {
			events += len(f.events(f.owner(), run))
		}
		found, summary, err := f.verify(f.anonymous(), "")
		if err != nil || len(found) > 0 || !summary.GetOk() {
			t.Fatalf("a good log: %v, %v, %v", found, summary, err)
		}
		if v := summary.GetVerified(); v.GetRuns() != 3 || v.GetEvents() != uint64(events) {
			t.Errorf("verified %v of %d events", v, events)
		}
		if _, summary, err := f.verify(f.anonymous(), "r1"); err != nil || !summary.GetOk() || summary.GetVerified().GetRuns() != 1 {
			t.Errorf("one run: %v, %v", summary, err)
		}
		_, _, err = f.verify(f.anonymous(), "none")
		wantReason(t, err, codes.NotFound, "RUN_NOT_FOUND")

		at := func(run string, sequence uint64, change func(*auditstore.Record)) func(*auditstore.Record) {
			return func(rec *auditstore.Record) {
				if rec.Run == run && rec.Sequence == sequence {
					change(rec)
				}
			}
		}
		var private uint64
		for _, resp := range f.events(f.owner(), "r1") {
			if resp.GetEvent().GetToolCallRequested() != nil && private == 0 {
				private = resp.GetEvent().GetSequence()
			}
		}
		rewrite := func(change func(*runnerdv1.Event)) func(*auditstore.Record) {
			return func(rec *auditstore.Record) {
				ev := new(runnerdv1.Event)
				if err := proto.Unmarshal(rec.Public, ev); err != nil {
					t.Error(err)
				}
				change(ev)
				var err error
				if rec.Public, err = proto.Marshal(ev); err != nil {
					t.Error(err)
				}
				// Whoever can write the file can make the chain good again.
				rec.Hash = auditstore.Hash(rec.PrevHash, rec.Public)
			}
		}
		for _, tt := range []struct {
			name   string
			change func(*auditstore.Record)
			body   func([]byte) []byte
			want   string
		}{
			{"a flipped bit", at("r1", 3, func(r *auditstore.Record) { r.Public[len(r.Public)-1] ^= 1 }), nil, "chain r1/3"},
			{"another hash", at("r1", 3, func(r *auditstore.Record) { r.Hash[0] ^= 1 }), nil, "chain r1/3"},
			{"no event", at("r1", 3, func(r *auditstore.Record) { r.Public = []byte{0xff} }), nil, "decode r1/3"},
			{"another run", at("r1", 3, rewrite(func(ev *runnerdv1.Event) { ev.RunId = "r2" })), nil, "decode r1/3"},
			{"a private part that changed", at("r1", private, func(r *auditstore.Record) { r.Private[5] ^= 1 }), nil, fmt.Sprint("private r1/", private)},
			{"a salt that changed", at("r1", private, func(r *auditstore.Record) { r.Salt[5] ^= 1 }), nil, fmt.Sprint("private r1/", private)},
			{"a private part that is gone", at("r1", private, func(r *auditstore.Record) { r.Private = nil }), nil, fmt.Sprint("private r1/", private)},
			{"another iteration", at("r1", 3, rewrite(func(ev *runnerdv1.Event) { ev.GetIterationStarted().Iteration = 7 })), nil, "invariant-"},
			{"another time", at("r1", 3, rewrite(func(ev *runnerdv1.Event) { ev.Time.Seconds -= 1000 })), nil, "invariant-14 r1/3"},
			{"another checkpoint", nil, func(b []byte) []byte {
				return bytes.Replace(b, []byte(`"ToolCalls":2`), []byte(`"ToolCalls":1`), 1)
			}, "seal r1/"},
			{"another checkpoint by who has the key", nil, func(b []byte) []byte {
				body := bytes.Replace(b[sealSize:], []byte(`"ToolCalls":2`), []byte(`"ToolCalls":1`), 1)
				return sealBody(testKey, "r1", head, body)
			}, "replay r1/"},
		} {
			d.set(tt.change, tt.body)
			found, summary, err := f.verify(f.anonymous(), "r1")
			if err != nil || summary.GetOk() || summary.GetFindings() != uint64(len(found)) || !strings.Contains(strings.Join(found, "\n"), tt.want) {
				t.Errorf("%s: found %v, %v, %v, want %q", tt.name, found, summary, err, tt.want)
			}
			found, summary, err = f.verify(f.anonymous(), "")
			if err != nil || summary.GetOk() || !strings.Contains(strings.Join(found, "\n"), tt.want) {
				t.Errorf("%s, in all runs: found %v, %v, %v, want %q", tt.name, found, summary, err, tt.want)
			}
		}
		d.set(nil, nil)
	})
}

// What a run may do comes from its events: a checkpoint body that somebody else wrote is not read.
func TestForgedCheckpointsGrantNothing(t *testing.T) {
	t.Parallel()
	rowDamaged(t, "a checkpoint with a grant that nobody gave", func(f *face, d *damaged) {
		t := f.t
		first := f.asked("r1", "deploy:{}\ndeploy:{}\nanswer:done")
		forged := 0
		d.set(func(*auditstore.Record) {}, func(b []byte) []byte {
			grant := `"Grants":[{"ID":1,"Scope":1,"Host":"` + first.GetHost() + `","Tool":"deploy","By":"x","At":"2026-01-02T03:04:05Z"}],"Calls":`
			out := bytes.Replace(b, []byte(`"Calls":`), []byte(grant), 1)
			if !bytes.Equal(out, b) {
				forged++
			}
			return out
		})
		if _, err := f.vote(first, runnerdv1.ApprovalVerdict_APPROVAL_VERDICT_APPROVE); err != nil {
			t.Fatal(err)
		}
		if got := f.settle("r1"); len(got.GetApprovals()) != 1 || got.GetIteration() != 2 {
			t.Errorf("the second call is not asked for: %v", got)
		}
		if forged == 0 {
			t.Error("no checkpoint was forged")
		}
		d.set(nil, nil)
	})
}

func TestVerifyErased(t *testing.T) {
	t.Parallel()
	inFace(t, func(f *face) {
		t := f.t
		f.start(f.owner(), "r1", "read:{\"password\":\"hunter2\"}\nanswer:done")
		f.settle("r1")
		id := ""
		for _, resp := range f.events(f.owner(), "r1") {
			if resp.GetEvent().GetToolCallCompleted() != nil {
				id = fmt.Sprintf("event.%d.text", resp.GetEvent().GetSequence())
			}
		}
		if err := f.log.Erase(t.Context(), "r1"); err != nil {
			t.Fatal(err)
		}
		found, summary, err := f.verify(f.anonymous(), "")
		if err != nil || len(found) > 0 || !summary.GetOk() || summary.GetVerified().GetErased() == 0 {
			t.Errorf("an erased run: %v, %v, %v", found, summary, err)
		}
		_, err = f.readArtifact(f.owner(), "r1", id, 0)
		wantReason(t, err, codes.NotFound, "ARTIFACT_NOT_FOUND")
	})
}

// TestVerifyProgress: a verification that takes long tells once a second how far it is, and only two run at a time.
func TestVerifyProgress(t *testing.T) {
	t.Parallel()
	rowDamaged(t, "progress comes once a second, two run at a time", func(f *face, d *damaged) {
		t := f.t
		for i := range 5 {
			run := fmt.Sprint("r", i)
			f.start(f.owner(), run, "answer:done")
			f.settle(run)
		}
		d.set(func(*auditstore.Record) { time.Sleep(200 * time.Millisecond) }, nil)
		began := time.Now()
		stream, err := f.audit.VerifyAudit(f.anonymous(), &runnerdv1.VerifyAuditRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); err != nil {
			t.Fatal(err)
		}
		second, err := f.audit.VerifyAudit(f.anonymous(), &runnerdv1.VerifyAuditRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := second.Recv(); err != nil {
			t.Fatal(err)
		}
		_, _, err = f.verify(f.anonymous(), "")
		wantReason(t, err, codes.ResourceExhausted, "OVERLOADED")
		told := 1
		var last uint64
		for {
			resp, err := stream.Recv()
			if err != nil {
				t.Fatal(err)
			}
			if resp.GetSummary() != nil {
				break
			}
			told++
			if resp.GetProgress().GetEvents() < last {
				t.Errorf("progress went back to %v", resp)
			}
			last = resp.GetProgress().GetEvents()
		}
		if took := time.Since(began); took < 5*time.Second || told < 3 || told > int(took/time.Second) {
			t.Errorf("told %d times in %v", told, took)
		}
		d.set(nil, nil)
	})
}

func TestExportAudit(t *testing.T) {
	t.Parallel()
	inFace(t, func(f *face) {
		t := f.t
		f.start(f.owner(), "r1", "read:{\"password\":\"hunter2\"}\nanswer:done")
		f.start(f.owner(), "r2", "block")
		f.settle("r1")
		for range 60 {
			if _, err := f.runs.SubmitInput(f.owner(), &runnerdv1.SubmitInputRequest{RunId: "r2", Text: strings.Repeat("z", 60_000)}); err != nil {
				t.Fatal(err)
			}
		}
		for _, tt := range []struct {
			run     string
			private bool
			events  int
		}{{"r1", false, 10}, {"r1", true, 10}, {"r2", true, 63}, {"", true, 73}} {
			stream, err := f.audit.ExportAudit(f.owner(), &runnerdv1.ExportAuditRequest{RunId: tt.run, IncludePrivate: tt.private})
			if err != nil {
				t.Fatal(err)
			}
			var text []byte
			for {
				resp, err := stream.Recv()
				if errors.Is(err, io.EOF) {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
				if n := len(resp.GetLines()); n > 1<<20 || resp.GetLines()[n-1] != '\n' {
					t.Errorf("a message of %d bytes", n)
				}
				text = append(text, resp.GetLines()...)
			}
			// What was exported can be verified without the daemon.
			prev := make(map[string]auditstore.Digest)
			events, privates := 0, 0
			lines := bufio.NewScanner(bytes.NewReader(text))
			lines.Buffer(nil, 1<<20)
			for lines.Scan() {
				var line struct {
					RunID         string `json:"run_id"`
					Sequence      uint64
					Position      uint64
					PrevHash      string `json:"prev_hash"`
					Hash          string
					Stored        []byte
					Private, Salt []byte
				}
				d := json.NewDecoder(bytes.NewReader(lines.Bytes()))
				d.DisallowUnknownFields()
				if err := d.Decode(&line); err != nil {
					t.Fatal(err)
				}
				events++
				hash := auditstore.Hash(prev[line.RunID], line.Stored)
				if line.Hash != fmt.Sprintf("%x", hash) || line.PrevHash != fmt.Sprintf("%x", prev[line.RunID]) || line.Position == 0 {
					t.Fatalf("event %s/%d does not verify", line.RunID, line.Sequence)
				}
				prev[line.RunID] = hash
				if line.Private != nil {
					privates++
					ev := new(runnerdv1.Event)
					if err := proto.Unmarshal(line.Stored, ev); err != nil {
						t.Fatal(err)
					}
					if digest := sha256.Sum256(append(line.Salt, line.Private...)); !bytes.Equal(digest[:], ev.GetPrivateDigest()) {
						t.Errorf("private part of %s/%d does not verify", line.RunID, line.Sequence)
					}
				}
			}
			if events != tt.events || (privates > 0) != tt.private {
				t.Errorf("%+v: %d events, %d private parts", tt, events, privates)
			}
			if bytes.Contains(text, []byte("hunter2")) {
				t.Error("what is private stands in the clear")
			}
		}
		_, err := mustStream(f.audit.ExportAudit(f.anonymous(), &runnerdv1.ExportAuditRequest{})).Recv()
		wantReason(t, err, codes.Unauthenticated, "CREDENTIAL_REQUIRED")
		_, err = mustStream(f.audit.ExportAudit(f.owner(), &runnerdv1.ExportAuditRequest{RunId: "none"})).Recv()
		wantReason(t, err, codes.NotFound, "RUN_NOT_FOUND")
	})
}

func mustStream[T any](stream T, err error) T {
	if err != nil {
		panic(err)
	}
	return stream
}

func TestGetHead(t *testing.T) {
	t.Parallel()
	inFace(t, func(f *face) {
		t := f.t
		empty, err := f.audit.GetHead(f.anonymous(), &runnerdv1.GetHeadRequest{})
		if err != nil || empty.GetPosition() != 0 || empty.GetLogId() != "log1" {
			t.Errorf("an empty log: %v, %v", empty, err)
		}
		f.start(f.owner(), "r1", "answer:done")
		f.start(f.owner(), "r2", "block")
		f.settle("r1")
		for _, run := range []string{"r1", "r2"} {
			all := f.events(f.owner(), run)
			last := all[len(all)-1].GetEvent()
			got, err := f.audit.GetHead(f.anonymous(), &runnerdv1.GetHeadRequest{RunId: run})
			if err != nil || got.GetSequence() != last.GetSequence() || !bytes.Equal(got.GetHash(), last.GetHash()) || got.GetPosition() < last.GetPosition() {
				t.Errorf("%s: %v, %v", run, got, err)
			}
		}
		_, err = f.audit.GetHead(f.anonymous(), &runnerdv1.GetHeadRequest{RunId: "none"})
		wantReason(t, err, codes.NotFound, "RUN_NOT_FOUND")
	})
}

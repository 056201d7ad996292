package runner

import (
	"log/slog"
	"strings"
	"testing"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/proto"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/auditstore/auditstoretest"
)

// FuzzTokens hands in what was never handed out: no page token opens, no run token is valid, no credential is
// known, and of a cursor there is one spelling.
func FuzzTokens(f *testing.F) {
	log := auditstoretest.NewMemory(nil)
	quiet := slog.New(slog.DiscardHandler)
	r, err := New(Config{
		Log: log, Blobs: log, LogID: "log1", Key: testKey, Agents: map[string]*Agent{"demo": demoAgent("demo")},
		Decider: new(brain), Tools: new(hands), Logger: quiet,
	})
	if err != nil {
		f.Fatal(err)
	}
	s, err := NewServer(ServerConfig{Runner: r, Auth: LocalAuth{ApproverToken: testToken}, Logger: quiet})
	if err != nil {
		f.Fatal(err)
	}
	pages, err := newPageTokens(testKey.Secret)
	if err != nil {
		f.Fatal(err)
	}
	list := &runnerdv1.ListRunsRequest{Agent: "demo"}
	page := pages.make(list, []byte("place"))
	run := r.tokens.begin("r1", "decide/1/1", flight{name: "decide", iteration: 1, attempt: 1})
	for _, text := range []string{
		"", page, strings.ToUpper(page), page + "A", page[1:], run, run[:len(run)-1], run + ":", "r1:decide/1/1:", "r2" + run[2:],
		"log1.0.0", "log1.00.0", "log1.0.+0", "log1.0.0.0", "log2.0.0", "log1.18446744073709551616.0", testToken, testToken + " ",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		place, err := pages.open(list, text)
		if err == nil && text != "" && string(place) != "place" { // base64 has several spellings
			t.Errorf("a page after %q opens with %q", place, text)
		}
		other := proto.CloneOf(list)
		other.Agent = "other"
		if _, err := pages.open(other, text); err == nil && text != "" {
			t.Errorf("a page of another request opens with %q", text)
		}
		if got, ok := r.CheckRunToken(text); ok != (text == run) {
			t.Errorf("the run token %q is good for run %q: %t", text, got, ok)
		}
		if c, err := r.parseCursor(t.Context(), text); err == nil && (r.cursor(c) != text || c.Position > 0) {
			t.Errorf("%q is the cursor %+v", text, c)
		}
		for _, caller := range []struct {
			key, value string
			known      bool
		}{
			{authorizationKey, text, isBearer(text)},
			{authorizationKey, "Bearer " + text, text == testToken},
			{runTokenKey, text, text == run},
		} {
			ctx := peer.NewContext(t.Context(), &peer.Peer{Addr: loopback})
			p, err := s.authenticate(metadata.NewIncomingContext(ctx, metadata.Pairs(caller.key, caller.value)))
			if known := err == nil && p.Credential; known != caller.known {
				t.Errorf("%s %q makes one %+v: %v", caller.key, caller.value, p, err)
			}
		}
	})
}

// isBearer reports whether a header has the token of the owner, however its scheme is spelled.
func isBearer(header string) bool {
	scheme, token, _ := strings.Cut(header, " ")
	return strings.EqualFold(scheme, "bearer") && token == testToken
}

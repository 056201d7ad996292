package runner

import (
	"bytes"
	"encoding/base64"
	"testing"

	"google.golang.org/protobuf/proto"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

func TestPageTokens(t *testing.T) {
	t.Parallel()
	tokensOf := func(secret string) pageTokens {
		tokens, err := newPageTokens([]byte(secret))
		if err != nil {
			t.Fatal(err)
		}
		return tokens
	}
	tokens := tokensOf("secret")
	list := func(change func(*runnerdv1.ListRunsRequest)) *runnerdv1.ListRunsRequest {
		req := &runnerdv1.ListRunsRequest{Agent: "demo", Labels: map[string]string{"a": "1", "b": "2"}}
		change(req)
		return req
	}
	none := func(*runnerdv1.ListRunsRequest) {}
	token := tokens.make(list(none), []byte("list/17/run"))
	for _, tt := range []struct {
		name   string
		tokens pageTokens
		req    proto.Message
		token  string
		ok     bool
	}{
		{"the same request", tokens, list(none), token, true},
		{"another page size", tokens, list(func(r *runnerdv1.ListRunsRequest) { r.PageSize, r.PageToken = 7, token }), token, true},
		{"after a restart", tokensOf("secret"), list(none), token, true},
		{"another filter", tokens, list(func(r *runnerdv1.ListRunsRequest) { r.Agent = "other" }), token, false},
		{"another label", tokens, list(func(r *runnerdv1.ListRunsRequest) { r.Labels["a"] = "2" }), token, false},
		{"another call", tokens, &runnerdv1.ListApprovalsRequest{}, token, false},
		{"another log", tokensOf("other"), list(none), token, false},
		{"a place of one's own", tokens, list(none), base64.RawURLEncoding.EncodeToString(make([]byte, 40)), false},
		{"too short", tokens, list(none), token[:20], false},
		{"changed", tokens, list(none), token[:len(token)-2] + "AA", false},
		{"no base64", tokens, list(none), "!!!", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			place, err := tt.tokens.open(tt.req, tt.token)
			if tt.ok {
				if err != nil || string(place) != "list/17/run" {
					t.Errorf("place %q, error %v", place, err)
				}
				return
			}
			fields := wrongFields(t, err, runnerdv1.ErrorReason_ERROR_REASON_BAD_PAGE_TOKEN)
			if len(fields) != 1 || fields[0] != "page_token" {
				t.Errorf("place %q, wrong fields %v", place, fields)
			}
		})
	}
	if raw, err := base64.RawURLEncoding.DecodeString(token); err != nil || bytes.Contains(raw, []byte("run")) {
		t.Errorf("a token shows where its page ends: %q, %v", raw, err)
	}
	if place, err := tokens.open(list(none), ""); place != nil || err != nil {
		t.Errorf("the first page is at %q: %v", place, err)
	}
}

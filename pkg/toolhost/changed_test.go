package toolhost_test

import (
	"context"
	"strings"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/internal/tooldigest"
	"github.com/runnerd/runnerd/pkg/toolhost"
)

// isChanged reports whether a host refused a call because its tool is another now.
func isChanged(err error) bool {
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok {
			return status.Code(err) == codes.FailedPrecondition && info.GetDomain() == "runnerd" && info.GetReason() == "TOOL_CHANGED"
		}
	}
	return false
}

func TestCallsOfAnotherDefinitionAreRefused(t *testing.T) {
	t.Parallel()
	serve := func(description string, ledger toolhost.Ledger, executed *int) *toolhost.Client {
		var opts []toolhost.Option
		if ledger != nil {
			opts = append(opts, toolhost.WithLedger(ledger))
		}
		h := toolhost.NewServer(opts...)
		h.Tool(toolhost.Definition{
			Name: "t", Description: description, Stateful: toolhost.Yes, SecurityTier: toolhost.High,
		}, func(context.Context, *toolhost.Call) (*toolhost.Result, error) {
			*executed++
			return toolhost.Text("done by " + description), nil
		})
		return connect(t, h)
	}
	pinned := func(c *toolhost.Client) string {
		list, err := c.ListTools(t.Context(), "host")
		if err != nil {
			t.Fatal(err)
		}
		if a := list.GetTools()[0].GetAnnotations(); !a.GetStateful() || a.GetSecurityTier() != "high" {
			t.Errorf("the host declares %v", a)
		}
		return tooldigest.Of(list.GetTools()[0])
	}
	call := func(c *toolhost.Client, digest string, n uint32) (*toolhost.Result, error) {
		req := attempt("k", n)
		req.SchemaDigest = digest
		return c.CallTool(t.Context(), "host", req, maxResult, nil)
	}

	t.Run("A8 the host refuses, exactly then", func(t *testing.T) {
		var executed int
		c := serve("one", nil, &executed)
		for _, digest := range []string{pinned(c), ""} { // who names no digest is of an older runnerd
			if _, err := call(c, digest, 1); err != nil {
				t.Errorf("digest %q: %v", digest, err)
			}
		}
		for _, digest := range []string{"x", strings.ToUpper(pinned(c)), pinned(serve("two", nil, &executed))} {
			if _, err := call(c, digest, 1); !isChanged(err) {
				t.Errorf("digest %q: %v", digest, err)
			}
		}
		if executed != 2 {
			t.Errorf("executed %d times, want twice", executed)
		}
	})

	t.Run("A8 an outcome that is there is told all the same", func(t *testing.T) {
		var executed int
		ledger := toolhost.NewMemoryLedger()
		before := serve("one", ledger, &executed)
		digest := pinned(before)
		if _, err := call(before, digest, 1); err != nil {
			t.Fatal(err)
		}
		after := serve("two", ledger, &executed)
		if got, err := call(after, digest, 2); err != nil || got.GetText() != "done by one" {
			t.Errorf("got %v, %v", got, err)
		}
		fresh := attempt("another", 1)
		fresh.SchemaDigest = digest
		if _, err := after.CallTool(t.Context(), "host", fresh, maxResult, nil); !isChanged(err) {
			t.Errorf("got %v", err)
		}
		got, err := after.GetCall(t.Context(), "host", question("another", 1), maxResult)
		if err != nil || got.GetFinished() != nil {
			t.Errorf("what was refused counts as executed: %v, %v", got, err)
		}
		if executed != 1 {
			t.Errorf("executed %d times, want once", executed)
		}
	})
}

func TestDigestCoversEveryField(t *testing.T) {
	t.Parallel()
	base := func() *runnerdv1.ToolDefinition {
		return &runnerdv1.ToolDefinition{
			Name: "n", Description: "d", InputSchemaJson: "{}", OutputSchemaJson: "{}", Annotations: &runnerdv1.Annotations{},
		}
	}
	seen := map[string]string{tooldigest.Of(base()): "nothing"}
	for name, change := range map[string]func(*runnerdv1.ToolDefinition){
		"name":           func(d *runnerdv1.ToolDefinition) { d.Name = "m" },
		"description":    func(d *runnerdv1.ToolDefinition) { d.Description = "e" },
		"input schema":   func(d *runnerdv1.ToolDefinition) { d.InputSchemaJson = "true" },
		"output schema":  func(d *runnerdv1.ToolDefinition) { d.OutputSchemaJson = "true" },
		"no annotations": func(d *runnerdv1.ToolDefinition) { d.Annotations = nil },
		"read_only":      func(d *runnerdv1.ToolDefinition) { d.Annotations.ReadOnly = new(true) },
		"not read_only":  func(d *runnerdv1.ToolDefinition) { d.Annotations.ReadOnly = new(false) },
		"destructive":    func(d *runnerdv1.ToolDefinition) { d.Annotations.Destructive = new(true) },
		"idempotent":     func(d *runnerdv1.ToolDefinition) { d.Annotations.Idempotent = new(true) },
		"stateful":       func(d *runnerdv1.ToolDefinition) { d.Annotations.Stateful = new(true) },
		"security_tier":  func(d *runnerdv1.ToolDefinition) { d.Annotations.SecurityTier = "low" },
	} {
		d := base()
		change(d)
		digest := tooldigest.Of(d)
		if other, taken := seen[digest]; taken {
			t.Errorf("%s has the digest of %s", name, other)
		}
		seen[digest] = name
	}
}

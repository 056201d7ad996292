package toolhost_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/internal/grpctest"
	"github.com/runnerd/runnerd/pkg/toolhost"
)

// answer is what a host answers to whatever it is asked: messages and a status.
type answer struct {
	messages [][]byte
	end      codes.Code
}

// FuzzAnswers is a host that answers with what it likes. A result is given to the caller where the host gave exactly
// one, last and within its bound; all else is one of the outcomes that the client tells apart, and none of them says
// that the call was not sent.
func FuzzAnswers(f *testing.F) {
	var next atomic.Pointer[answer]
	s := grpctest.Serve(f, func(grpc.ServiceRegistrar) {}, grpc.ForceServerCodecV2(rawCodec{}),
		grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
			a := next.Load() // a call that the client gave up goes on beside the next one
			if err := stream.RecvMsg(nil); err != nil {
				return err
			}
			for _, m := range a.messages {
				if err := stream.SendMsg(m); err != nil {
					return err
				}
			}
			return status.Error(a.end, "the host says so")
		}))
	client, err := toolhost.NewClient(map[string]toolhost.Endpoint{
		"host": {Address: s.Target(), DialOptions: []grpc.DialOption{s.DialOption()}},
	})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { client.Close() })

	encoded := func(msg proto.Message) []byte {
		b, err := proto.Marshal(msg)
		if err != nil {
			f.Fatal(err)
		}
		return b
	}
	full := encoded(result("text"))
	for _, end := range []codes.Code{codes.OK, codes.NotFound, codes.Unavailable} {
		for count := range uint8(4) {
			f.Add(count, uint8(end), encoded(progress("half")), full, full)
			f.Add(count, uint8(end), full, []byte{0xff}, encoded(progress("late")))
		}
	}
	f.Add(uint8(4+4+1), uint8(0), encoded(&runnerdv1.GetCallResponse{
		State: &runnerdv1.GetCallResponse_Finished{Finished: &runnerdv1.ToolResult{Text: "text"}},
	}), full, full)
	f.Add(uint8(4+1), uint8(0), encoded(&runnerdv1.ToolHostServiceListToolsResponse{
		Tools: []*runnerdv1.ToolDefinition{{Name: "read", InputSchemaJson: "{}"}}, HasGetCall: true,
	}), full, full)

	const maxResult = 64
	// Count is the number of messages and, beyond four, what is asked for.
	f.Fuzz(func(t *testing.T, count, end uint8, first, second, third []byte) {
		a := &answer{messages: [][]byte{first, second, third}[:count%4], end: codes.Code(end % 17)}
		next.Store(a)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()

		switch count / 4 % 3 {
		case 0:
			got, err := client.CallTool(ctx, "host", &runnerdv1.CallToolRequest{}, maxResult, nil)
			want, good := a.result(maxResult)
			if good && err != nil || err == nil && (want == nil || !proto.Equal(got, want)) {
				t.Errorf("a call gives %v and %v, the host gave %v", got, err, want)
			}
			checkOutcome(t, err)
		case 1:
			list, err := client.ListTools(ctx, "host")
			if checkOutcome(t, err); err == nil && (list == nil || len(a.messages) != 1 || a.end != codes.OK) {
				t.Errorf("a list comes of %d messages and %s", len(a.messages), a.end)
			}
		default:
			found, err := client.GetCall(ctx, "host", &runnerdv1.GetCallRequest{}, maxResult)
			if checkOutcome(t, err); err == nil && (found == nil || size(found.GetFinished()) > maxResult) {
				t.Errorf("the host is said to have found %v", found)
			}
		}
	})
}

// result is the one result of an answer, or nil, and whether there is nothing else to say about it.
func (a *answer) result(most int) (*runnerdv1.ToolResult, bool) {
	for i, m := range a.messages {
		msg := new(runnerdv1.CallToolResponse)
		if proto.Unmarshal(m, msg) != nil {
			return nil, false
		}
		if msg.GetResult() == nil {
			continue
		}
		if i < len(a.messages)-1 || size(msg.GetResult()) > most {
			return nil, false
		}
		return msg.GetResult(), a.end == codes.OK
	}
	return nil, false
}

func size(r *runnerdv1.ToolResult) int {
	n := len(r.GetText()) + len(r.GetStructuredJson())
	for _, b := range r.GetBlobs() {
		n += len(b.GetData())
	}
	return n
}

// checkOutcome fails on an error that no answer of a host can be.
func checkOutcome(t *testing.T, err error) {
	t.Helper()
	switch got := outcome(err); got {
	case "not sent", "OK", "":
		t.Errorf("the outcome is %q: %v", got, err)
	}
}

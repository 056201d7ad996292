package decide_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/decide"
	"github.com/runnerd/runnerd/pkg/internal/grpctest"
)

// bytesCodec sends bytes as they are.
type bytesCodec struct{}

func (bytesCodec) Name() string                         { return "proto" }
func (bytesCodec) Unmarshal(mem.BufferSlice, any) error { return nil }
func (bytesCodec) Marshal(v any) (mem.BufferSlice, error) {
	b, ok := v.([]byte)
	if !ok {
		return nil, fmt.Errorf("bytesCodec: got a %T", v)
	}
	return mem.BufferSlice{mem.SliceBuffer(b)}, nil
}

// answer is what a service answers: messages and a status.
type answer struct {
	messages [][]byte
	end      codes.Code
}

// FuzzAnswers is a service that answers with what it likes. A decision is given to the caller where the service gave
// exactly one, last; all else is one of the outcomes that the client tells apart, and none of them says that the
// request was not sent.
func FuzzAnswers(f *testing.F) {
	var next atomic.Pointer[answer]
	s := grpctest.Serve(f, func(grpc.ServiceRegistrar) {}, grpc.ForceServerCodecV2(bytesCodec{}),
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
			return status.Error(a.end, "the service says so")
		}))
	client, err := decide.NewClient(map[string]decide.Endpoint{
		"brain": {Address: s.Target(), DialOptions: []grpc.DialOption{s.DialOption()}},
	})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { client.Close() })

	encoded := func(msg *runnerdv1.DecideResponse) []byte {
		b, err := proto.Marshal(msg)
		if err != nil {
			f.Fatal(err)
		}
		return b
	}
	text := encoded(&runnerdv1.DecideResponse{Event: &runnerdv1.DecideResponse_TextDelta{TextDelta: &runnerdv1.TextDelta{Text: "hm"}}})
	decision := encoded(&runnerdv1.DecideResponse{Event: &runnerdv1.DecideResponse_Decision{Decision: &runnerdv1.Decision{
		Text: "hm", Usage: &runnerdv1.Usage{CostCents: new(0.5)}, Next: &runnerdv1.Decision_ToolCalls{
			ToolCalls: &runnerdv1.ToolCalls{Calls: []*runnerdv1.ToolCall{{Id: "1", Name: "read", ArgumentsJson: "{}"}}},
		},
	}}})
	for _, end := range []codes.Code{codes.OK, codes.NotFound, codes.Unavailable} {
		for count := range uint8(4) {
			f.Add(count, uint8(end), text, decision, decision)
			f.Add(count, uint8(end), decision, []byte{0xff}, text)
			f.Add(count, uint8(end), text, text, decision)
		}
	}

	f.Fuzz(func(t *testing.T, count, end uint8, first, second, third []byte) {
		a := &answer{messages: [][]byte{first, second, third}[:count%4], end: codes.Code(end % 17)}
		next.Store(a)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()

		var texts []string
		got, err := client.Decide(ctx, "brain", &runnerdv1.DecideRequest{}, func(text string) { texts = append(texts, text) })
		want, good := a.decision()
		if good && err != nil || err == nil && (want == nil || !proto.Equal(got, want)) {
			t.Errorf("the client has %v and %v, the service gave %v", got, err, want)
		}
		if len(texts) > len(a.messages) {
			t.Errorf("%d pieces of text in %d messages", len(texts), len(a.messages))
		}
		switch got := outcome(err); got {
		case "not sent", "OK", "":
			t.Errorf("the outcome is %q: %v", got, err)
		}
	})
}

// decision is the one decision of an answer, or nil, and whether there is nothing else to say about it.
func (a *answer) decision() (*runnerdv1.Decision, bool) {
	for i, m := range a.messages {
		msg := new(runnerdv1.DecideResponse)
		if proto.Unmarshal(m, msg) != nil {
			return nil, false
		}
		if msg.GetDecision() == nil {
			continue
		}
		if i < len(a.messages)-1 {
			return nil, false
		}
		return msg.GetDecision(), a.end == codes.OK
	}
	return nil, false
}

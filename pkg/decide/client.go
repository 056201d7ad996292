package decide

import (
	"context"

	"google.golang.org/protobuf/proto"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/internal/rpcclient"
)

const (
	// MaxDecision bounds an encoded Decision, in bytes.
	MaxDecision = 1 << 20

	// maxMessage bounds one message of the stream, in bytes. The odd kilobyte tells it from gRPC's own default of
	// 4 MiB, which stands in the errors that a service hands on from elsewhere.
	maxMessage = 4<<20 + 1<<10
)

// Endpoint says how to reach one decide service: Address (a gRPC target), TLS (nil: a plain connection), Keepalive,
// DialOptions.
type Endpoint = rpcclient.Endpoint

// Client is runnerd's side of decide services: it asks them by their configured names. It is safe for concurrent use.
//
// It asks once and leaves it to the caller to ask again. Its errors are gRPC status errors, or have one of these
// methods:
//
//	NotSent() bool      // the request never left the process
//	Undecodable() bool  // an answer came that cannot be decoded
//	TooLarge() bool     // an answer came that is over its bound
//	BadStream() string  // "no_decision", "several_decisions": the stream is none of the contract
//
// A status of INVALID_ARGUMENT, NOT_FOUND, ALREADY_EXISTS, FAILED_PRECONDITION, OUT_OF_RANGE, PERMISSION_DENIED,
// UNAUTHENTICATED or UNIMPLEMENTED was sent by the service, never made up by the transport.
type Client struct {
	pool *rpcclient.Pool
}

// NewClient makes a client of the services with these names. Nothing is dialled before the first call. An error
// names the endpoint that cannot be used.
func NewClient(services map[string]Endpoint) (*Client, error) {
	pool, err := rpcclient.Open("decide service", services)
	if err != nil {
		return nil, err
	}
	return &Client{pool: pool}, nil
}

// Close closes the connections to all services. Calls in progress end with CANCELED.
func (c *Client) Close() error { return c.pool.Close() }

// Decide asks a service what a run does next. Each piece of text goes to onText, unless that is nil, before the next
// message is read. A decision of more than MaxDecision bytes is an error with TooLarge. It is given up when ctx ends,
// and the service is told so.
func (c *Client) Decide(
	ctx context.Context, service string, req *runnerdv1.DecideRequest, onText func(string),
) (*runnerdv1.Decision, error) {
	call := rpcclient.Call{
		Service:    service,
		Method:     runnerdv1.DecideService_Decide_FullMethodName,
		Request:    req,
		MaxReceive: maxMessage,
	}
	decision, err := rpcclient.One(ctx, c.pool, call, "decision",
		func(msg *runnerdv1.DecideResponse) *runnerdv1.Decision {
			if d := msg.GetTextDelta(); d != nil && onText != nil {
				onText(d.GetText())
			}
			return msg.GetDecision()
		})
	if err != nil {
		return nil, err
	}
	if size := proto.Size(decision); size > MaxDecision {
		return nil, rpcclient.NewTooLarge("decision has %d bytes, more than %d", size, MaxDecision)
	}
	return decision, nil
}

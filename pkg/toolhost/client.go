package toolhost

import (
	"context"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/internal/rpcclient"
)

const (
	// maxToolList bounds the answer of ListTools, in bytes.
	maxToolList = 16 << 20

	// maxOverhead is what an answer may have beside the content of a result: names, MIME types, encoding. In bytes.
	maxOverhead = 1 << 20
)

// Endpoint says how to reach one tool host: Address (a gRPC target), TLS (nil: a plain connection), Keepalive,
// DialOptions.
type Endpoint = rpcclient.Endpoint

// Client is runnerd's side of tool hosts: it calls them by their configured names. It is safe for concurrent use.
//
// It sends each call at most once and leaves it to the caller to send it again. Its errors are gRPC status errors,
// or have one of these methods:
//
//	NotSent() bool      // the request never left the process
//	Undecodable() bool  // the host answered, and the answer cannot be decoded
//	TooLarge() bool     // the host answered, and the answer is over its bound
//	BadStream() string  // "no_result", "several_results": the stream is none of the contract; what happened is unknown
//
// A status of INVALID_ARGUMENT, NOT_FOUND, ALREADY_EXISTS, FAILED_PRECONDITION, OUT_OF_RANGE, PERMISSION_DENIED,
// UNAUTHENTICATED or UNIMPLEMENTED was sent by the host, never made up by the transport.
type Client struct {
	pool *rpcclient.Pool
}

// NewClient makes a client of the hosts with these names. Nothing is dialled before the first call. An error names
// the endpoint that cannot be used.
func NewClient(hosts map[string]Endpoint) (*Client, error) {
	pool, err := rpcclient.Open("tool host", hosts)
	if err != nil {
		return nil, err
	}
	return &Client{pool: pool}, nil
}

// Close closes the connections to all hosts. Calls in progress end with CANCELED.
func (c *Client) Close() error { return c.pool.Close() }

// ListTools lists the tools of a host. The list is as the host gave it, of at most 16 MiB; whether its tools can be
// used is for the caller to check.
func (c *Client) ListTools(ctx context.Context, host string) (*runnerdv1.ToolHostServiceListToolsResponse, error) {
	return rpcclient.Unary[runnerdv1.ToolHostServiceListToolsResponse](ctx, c.pool, rpcclient.Call{
		Service:    host,
		Method:     runnerdv1.ToolHostService_ListTools_FullMethodName,
		Request:    &runnerdv1.ToolHostServiceListToolsRequest{},
		MaxReceive: maxToolList,
	})
}

// CallTool executes one attempt of one call and returns its result. A result whose text, structured part and blobs
// have more than maxResult bytes together is an error with TooLarge. Each progress message goes to onProgress, unless
// that is nil, before the next message is read. The attempt is given up when ctx ends, and the host is told so.
func (c *Client) CallTool(
	ctx context.Context, host string, req *runnerdv1.CallToolRequest, maxResult int,
	onProgress func(*runnerdv1.Progress),
) (*runnerdv1.ToolResult, error) {
	call := rpcclient.Call{
		Service:    host,
		Method:     runnerdv1.ToolHostService_CallTool_FullMethodName,
		Request:    req,
		MaxReceive: maxResult + maxOverhead,
	}
	result, err := rpcclient.One(ctx, c.pool, call, "result",
		func(msg *runnerdv1.CallToolResponse) *runnerdv1.ToolResult {
			if p := msg.GetProgress(); p != nil && onProgress != nil {
				onProgress(p)
			}
			return msg.GetResult()
		})
	if err != nil {
		return nil, err
	}
	if err := checkSize(result, maxResult); err != nil {
		return nil, err
	}
	return result, nil
}

// GetCall asks a host what became of a call. A FINISHED result is bounded as that of CallTool is.
func (c *Client) GetCall(
	ctx context.Context, host string, req *runnerdv1.GetCallRequest, maxResult int,
) (*runnerdv1.GetCallResponse, error) {
	resp, err := rpcclient.Unary[runnerdv1.GetCallResponse](ctx, c.pool, rpcclient.Call{
		Service:    host,
		Method:     runnerdv1.ToolHostService_GetCall_FullMethodName,
		Request:    req,
		MaxReceive: maxResult + maxOverhead,
	})
	if err != nil {
		return nil, err
	}
	if err := checkSize(resp.GetFinished(), maxResult); err != nil {
		return nil, err
	}
	return resp, nil
}

// checkSize returns an error if the content of a result is over its bound.
func checkSize(result *runnerdv1.ToolResult, maxResult int) error {
	size := len(result.GetText()) + len(result.GetStructuredJson())
	for _, b := range result.GetBlobs() {
		size += len(b.GetData())
	}
	if size > maxResult {
		return rpcclient.NewTooLarge("result has %d bytes, more than %d", size, maxResult)
	}
	return nil
}

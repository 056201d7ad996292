package toolhost

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime/debug"
	"strings"
	"unicode/utf8"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/internal/rpcserver"
	"github.com/runnerd/runnerd/pkg/internal/tooldigest"
)

// Declared is what a tool host says about a tool, or that it says nothing.
type Declared int

// The zero value declares nothing, which runnerd takes as the worst.
const (
	Undeclared Declared = iota
	Yes
	No
)

func (d Declared) proto() *bool {
	switch d {
	case Yes:
		return new(true)
	case No:
		return new(false)
	default:
		return nil
	}
}

// Definition describes a tool to runnerd and to the model.
type Definition struct {
	// Name is how the tool is called, 1 to 128 bytes without blanks or control characters.
	Name string
	// Description tells the model what the tool does and when to use it. runnerd offers no tool without one.
	Description string
	// InputSchema is the JSON Schema of the arguments. Empty: any object.
	InputSchema string
	// OutputSchema is the JSON Schema of structured results. Empty: nothing is promised.
	OutputSchema string
	// ReadOnly: the tool changes nothing. It may be called again when an outcome is lost, and needs no approval.
	ReadOnly Declared
	// Destructive: the tool may destroy or overwrite something.
	Destructive Declared
	// Idempotent: calls with one idempotency key have the effect of one. It may be called again when an outcome is
	// lost. A Ledger keeps this promise for a tool that cannot by itself.
	Idempotent Declared
	// Stateful: the tool remembers between calls, as a shell or a browser does.
	Stateful Declared
	// SecurityTier is the risk of the tool in the host's own word. Empty: by what is declared above. It can raise what
	// runnerd takes for the risk, never lower it.
	SecurityTier SecurityTier
}

// SecurityTier is a word for the risk of a tool.
type SecurityTier string

// The words for risk, and the tiers they raise a tool to: 0, 2, 3 and 4.
const (
	Low      SecurityTier = "low"
	Medium   SecurityTier = "medium"
	High     SecurityTier = "high"
	Critical SecurityTier = "critical"
)

// Result is the outcome of a call: text for the model, structured JSON, blobs.
type Result = runnerdv1.ToolResult

// Text is a result of text alone.
func Text(text string) *Result { return &Result{Text: text} }

// Handler executes one call of a tool. It must return soon after ctx ended, which it does when the call is given up.
//
// An error becomes a result that tells the model that the tool failed, with the error's text; unless the context
// ended, which leaves the outcome open, or the error is one of Refuse. A panic is a failure too.
type Handler func(ctx context.Context, call *Call) (*Result, error)

// Call is one call of a tool.
type Call struct {
	// Request is the call as runnerd sent it: run, attempt, idempotency key, arguments, deadline, run token.
	Request *runnerdv1.CallToolRequest
	send    func(*runnerdv1.CallToolResponse) error
}

// Decode decodes the arguments into v, as json.Unmarshal does. Its error refuses the call if it is returned.
func (c *Call) Decode(v any) error {
	if err := json.Unmarshal([]byte(c.Request.GetArgumentsJson()), v); err != nil {
		return Refuse(codes.InvalidArgument, "arguments: %v", err)
	}
	return nil
}

// Progress tells that the call is alive. A fraction from 0 to 1 tells how much of it is done; less than 0 is unknown.
// It must not be called after the handler returned, nor by two goroutines at a time.
func (c *Call) Progress(message string, fraction float64) {
	p := &runnerdv1.Progress{Message: strings.ToValidUTF8(message, "\uFFFD")}
	if fraction >= 0 {
		p.Fraction = new(min(fraction, 1))
	}
	// The stream broke: the context says so to the handler, and its result will meet the same error.
	_ = c.send(&runnerdv1.CallToolResponse{Event: &runnerdv1.CallToolResponse_Progress{Progress: p}})
}

// refusal is an error that says that the call was not executed.
type refusal struct{ status *status.Status }

func (r *refusal) Error() string { return r.status.Message() }

// GRPCStatus is what gRPC sends for the error.
func (r *refusal) GRPCStatus() *status.Status { return r.status }

// Refuse is the error of a handler that has done nothing and will not. The code is one of INVALID_ARGUMENT,
// NOT_FOUND, ALREADY_EXISTS, FAILED_PRECONDITION, OUT_OF_RANGE, PERMISSION_DENIED, UNAUTHENTICATED, UNIMPLEMENTED;
// any other would leave the outcome open and is sent as FAILED_PRECONDITION.
func Refuse(code codes.Code, format string, args ...any) error {
	switch code {
	case codes.InvalidArgument, codes.NotFound, codes.AlreadyExists, codes.FailedPrecondition, codes.OutOfRange,
		codes.PermissionDenied, codes.Unauthenticated, codes.Unimplemented:
	default:
		code = codes.FailedPrecondition
	}
	return &refusal{status.Newf(code, format, args...)}
}

// served is a tool as a Server executes it.
type served struct {
	handler Handler
	digest  string // by which runnerd knows the definition
}

// Server serves tools. Tools are added before it serves. A call that was decided for another definition of its tool, as
// after an update of the host, is refused.
type Server struct {
	runnerdv1.UnimplementedToolHostServiceServer
	tools  map[string]served
	list   []*runnerdv1.ToolDefinition
	ledger Ledger
	log    *slog.Logger
}

// Option changes a Server.
type Option func(*Server)

// WithLedger makes the server answer GetCall, and a key that has an outcome with that outcome.
func WithLedger(l Ledger) Option { return func(s *Server) { s.ledger = l } }

// WithLogger sets where panics are logged. The default is slog.Default().
func WithLogger(l *slog.Logger) Option { return func(s *Server) { s.log = l } }

// NewServer makes a server without tools.
func NewServer(opts ...Option) *Server {
	s := &Server{tools: make(map[string]served), log: slog.Default()}
	for _, o := range opts {
		o(s)
	}
	return s
}

// Tool adds a tool. It panics if the definition is no use: a name that is blank or taken, a schema that is not JSON.
func (s *Server) Tool(def Definition, handler Handler) {
	if err := s.add(def, handler); err != nil {
		panic(fmt.Sprintf("toolhost: tool %q: %v", def.Name, err))
	}
}

func (s *Server) add(def Definition, handler Handler) error {
	if def.Name == "" {
		return errors.New("no name")
	}
	if _, taken := s.tools[def.Name]; taken {
		return errors.New("name is taken")
	}
	switch def.SecurityTier {
	case "", Low, Medium, High, Critical:
	default:
		return fmt.Errorf("security tier %q is none", def.SecurityTier)
	}
	for _, text := range []string{def.Name, def.Description, def.InputSchema, def.OutputSchema} {
		if !utf8.ValidString(text) {
			return errors.New("the definition is not valid UTF-8")
		}
	}
	for _, schema := range []string{def.InputSchema, def.OutputSchema} {
		if schema != "" && !json.Valid([]byte(schema)) {
			return errors.New("schema is not JSON")
		}
	}
	listed := &runnerdv1.ToolDefinition{
		Name: def.Name, Description: def.Description,
		InputSchemaJson: def.InputSchema, OutputSchemaJson: def.OutputSchema,
		Annotations: &runnerdv1.Annotations{
			ReadOnly: def.ReadOnly.proto(), Destructive: def.Destructive.proto(), Idempotent: def.Idempotent.proto(),
			Stateful: def.Stateful.proto(), SecurityTier: string(def.SecurityTier),
		},
	}
	s.tools[def.Name] = served{handler: handler, digest: tooldigest.Of(listed)}
	s.list = append(s.list, listed)
	return nil
}

// ListenAndServe serves s, with health and reflection, on a TCP address such as "127.0.0.1:7790", or a Unix socket such
// as "unix:///run/x.sock", until ctx ends. Calls in progress then have 10 s to end.
func ListenAndServe(ctx context.Context, addr string, s *Server, opts ...grpc.ServerOption) error {
	return rpcserver.ListenAndServe(ctx, addr, s.Register, opts...)
}

// Serve is ListenAndServe on a listener, which it closes.
func (s *Server) Serve(ctx context.Context, lis net.Listener, opts ...grpc.ServerOption) error {
	return rpcserver.Serve(ctx, lis, rpcserver.DrainTime, s.Register, opts...)
}

// Register adds the tools to a gRPC server of the caller's.
func (s *Server) Register(r grpc.ServiceRegistrar) { runnerdv1.RegisterToolHostServiceServer(r, s) }

// ListTools implements runnerdv1.ToolHostServiceServer.
func (s *Server) ListTools(
	context.Context, *runnerdv1.ToolHostServiceListToolsRequest,
) (*runnerdv1.ToolHostServiceListToolsResponse, error) {
	return &runnerdv1.ToolHostServiceListToolsResponse{Tools: s.list, HasGetCall: s.ledger != nil}, nil
}

// CallTool implements runnerdv1.ToolHostServiceServer.
func (s *Server) CallTool(req *runnerdv1.CallToolRequest, stream grpc.ServerStreamingServer[runnerdv1.CallToolResponse]) error {
	tool, ok := s.tools[req.GetName()]
	if !ok {
		return status.Errorf(codes.NotFound, "no tool %q", req.GetName())
	}
	execute := func() (*Result, error) {
		// Only now: what an earlier attempt has done is answered first.
		if pinned := req.GetSchemaDigest(); pinned != "" && pinned != tool.digest {
			return nil, errChanged(req.GetName())
		}
		return s.execute(stream.Context(), tool.handler, &Call{Request: req, send: stream.Send})
	}
	var result *Result
	var err error
	if s.ledger == nil {
		result, err = execute()
	} else {
		result, err = s.once(stream.Context(), req, execute)
	}
	if err != nil {
		return err
	}
	return stream.Send(&runnerdv1.CallToolResponse{Event: &runnerdv1.CallToolResponse_Result{Result: result}})
}

// errChanged refuses a call that was decided, and perhaps approved, for another definition of its tool.
func errChanged(tool string) error {
	st := status.Newf(codes.FailedPrecondition, "not executed: the tool %q is not the one that the run has pinned", tool)
	detailed, err := st.WithDetails(&errdetails.ErrorInfo{Domain: "runnerd", Reason: "TOOL_CHANGED"})
	if err != nil {
		return st.Err() // a detail that cannot be encoded: it cannot happen
	}
	return detailed.Err()
}

// execute runs a handler. Its error is a status: a refusal, or that the outcome is open.
func (s *Server) execute(ctx context.Context, handler Handler, call *Call) (result *Result, err error) {
	defer func() {
		if v := recover(); v != nil {
			s.log.ErrorContext(ctx, "tool panicked", "tool", call.Request.GetName(),
				"idempotency_key", call.Request.GetIdempotencyKey(), "panic", v, "stack", string(debug.Stack()))
			result, err = failure("the tool panicked"), nil
		}
	}()
	result, err = handler(ctx, call)
	if r, ok := errors.AsType[*refusal](err); ok {
		return nil, r.status.Err()
	}
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, status.FromContextError(ctx.Err()).Err()
	case err != nil:
		return failure(err.Error()), nil
	case result == nil:
		return &Result{}, nil
	default:
		return sendable(result), nil
	}
}

func failure(text string) *Result {
	return &Result{Text: strings.ToValidUTF8(text, "\uFFFD"), IsError: true}
}

// sendable is a result that protobuf can carry and runnerd can take. Bytes that are no text go along as a blob, and
// the text shows where they were.
func sendable(r *Result) *Result {
	if r.GetStructuredJson() != "" && !json.Valid([]byte(r.GetStructuredJson())) {
		return failure("the structured result of the tool is not JSON")
	}
	// The result is the handler's, which may give it to several calls.
	out := &Result{
		Text:           strings.ToValidUTF8(r.GetText(), "\uFFFD"),
		StructuredJson: strings.ToValidUTF8(r.GetStructuredJson(), "\uFFFD"),
		IsError:        r.GetIsError(),
	}
	for _, b := range r.GetBlobs() {
		out.Blobs = append(out.Blobs, &runnerdv1.Blob{
			MimeType: strings.ToValidUTF8(b.GetMimeType(), "\uFFFD"),
			Name:     strings.ToValidUTF8(b.GetName(), "\uFFFD"),
			Data:     b.GetData(),
		})
	}
	if !utf8.ValidString(r.GetText()) {
		out.Blobs = append(out.Blobs, &runnerdv1.Blob{
			MimeType: "application/octet-stream", Name: "text", Data: []byte(r.GetText()),
		})
	}
	return out
}

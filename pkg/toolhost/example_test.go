package toolhost_test

import (
	"context"
	"fmt"
	"log"
	"net"
	"strconv"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/toolhost"
)

// A host with one tool, and a call of it as runnerd makes it. A real host ends with ListenAndServe.
func Example() {
	ctx, stop := context.WithCancel(context.Background())
	lis, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}

	type addition struct{ A, B int }
	h := toolhost.NewServer()
	h.Tool(toolhost.Typed(
		toolhost.Definition{Name: "add", Description: "Adds two numbers.", ReadOnly: toolhost.Yes},
		func(_ context.Context, in addition) (string, error) { return strconv.Itoa(in.A + in.B), nil }))
	served := make(chan error, 1)
	go func() { served <- h.Serve(ctx, lis) }()

	client, err := toolhost.NewClient(map[string]toolhost.Endpoint{"numbers": {Address: lis.Addr().String()}})
	if err != nil {
		log.Fatal(err)
	}
	result, err := client.CallTool(ctx, "numbers", &runnerdv1.CallToolRequest{Name: "add", ArgumentsJson: `{"A":1,"B":2}`}, 1<<20, nil)
	fmt.Println(result.GetText(), err)
	fmt.Println(client.Close())
	stop()
	fmt.Println(<-served)
	// Output:
	// 3 <nil>
	// <nil>
	// <nil>
}

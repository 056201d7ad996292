package decide_test

import (
	"context"
	"fmt"
	"log"
	"net"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/decide"
)

// A decide service, and a question as runnerd asks it. A real service ends with ListenAndServe.
func Example() {
	ctx, stop := context.WithCancel(context.Background())
	lis, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}

	brain := decide.Func(func(_ context.Context, req *runnerdv1.DecideRequest, text decide.TextSink) (*runnerdv1.Decision, error) {
		text("Easy. ")
		return decide.Answer("You said: " + req.GetTask()), nil
	})
	served := make(chan error, 1)
	go func() { served <- decide.Serve(ctx, lis, brain) }()

	client, err := decide.NewClient(map[string]decide.Endpoint{"brain": {Address: lis.Addr().String()}})
	if err != nil {
		log.Fatal(err)
	}
	d, err := client.Decide(ctx, "brain", &runnerdv1.DecideRequest{Task: "hello"}, func(piece string) { fmt.Print(piece) })
	fmt.Println(d.GetAnswer().GetContent(), err)
	fmt.Println(client.Close())
	stop()
	fmt.Println(<-served)
	// Output:
	// Easy. You said: hello <nil>
	// <nil>
	// <nil>
}

// Command decide is a decide service: it asks for one tool and answers with what the tool said.
package main

import (
	"context"
	"log"
	"os"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/decide"
)

func main() {
	log.Fatal(decide.ListenAndServe(context.Background(), os.Args[1], decide.Func(brain)))
}

func brain(_ context.Context, req *runnerdv1.DecideRequest, text decide.TextSink) (*runnerdv1.Decision, error) {
	if n := len(req.GetHistory()); n > 0 {
		return decide.Answer("Words: " + req.GetHistory()[n-1].GetObservation().GetText()), nil
	}
	text("Let me count. ")
	return decide.Calls(decide.Call("count_words", map[string]string{"text": req.GetTask()})), nil
}

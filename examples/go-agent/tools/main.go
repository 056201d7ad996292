// Command tools is a tool host with one tool.
package main

import (
	"context"
	"log"
	"os"
	"strconv"
	"strings"

	"github.com/runnerd/runnerd/pkg/toolhost"
)

type arguments struct {
	Text string `json:"text" jsonschema:"the text whose words are counted"`
}

func main() {
	h := toolhost.NewServer()
	h.Tool(toolhost.Typed(
		toolhost.Definition{Name: "count_words", Description: "Counts the words of a text.", ReadOnly: toolhost.Yes},
		func(_ context.Context, in arguments) (string, error) {
			return strconv.Itoa(len(strings.Fields(in.Text))), nil
		}))
	log.Fatal(toolhost.ListenAndServe(context.Background(), os.Args[1], h))
}

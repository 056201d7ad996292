package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// output is how a command that reads prints.
type output struct {
	format string
	color  string
}

func addOutputFlags(cmd *cobra.Command) *output {
	o := &output{}
	cmd.Flags().StringVarP(&o.format, "output", "o", "text", "text for people, or json: one message a line, as in the protos")
	cmd.Flags().StringVar(&o.color, "color", "auto", "auto (on a terminal, unless NO_COLOR is set), always or never")
	return o
}

// json reports whether messages are printed, and that the flags are good.
func (o *output) json() (bool, error) {
	switch o.format {
	case "text":
		return false, nil
	case "json":
		return true, nil
	}
	return false, usageError{fmt.Errorf("--output %q is none of text, json", o.format)}
}

// style chooses colours for what is written to w.
func (p *program) style(o *output, w io.Writer) (style, error) {
	switch o.color {
	case "always":
		return style{color: true}, nil
	case "never":
		return style{}, nil
	case "auto":
		_, tty := p.terminal(w)
		return style{color: tty && p.env("NO_COLOR") == "" && p.env("TERM") != "dumb"}, nil
	}
	return style{}, usageError{fmt.Errorf("--color %q is none of auto, always, never", o.color)}
}

// style paints. Nothing that comes from outside goes into a code.
type style struct{ color bool }

func (s style) paint(code, text string) string {
	if !s.color || text == "" {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

func (s style) bold(text string) string   { return s.paint("1", text) }
func (s style) dim(text string) string    { return s.paint("2", text) }
func (s style) red(text string) string    { return s.paint("31", text) }
func (s style) green(text string) string  { return s.paint("32", text) }
func (s style) yellow(text string) string { return s.paint("33", text) }
func (s style) cyan(text string) string   { return s.paint("36", text) }

// printJSON prints one message on one line, with field names as in the protos.
// The escapes of the encoder are those of JSON, so that the line is safe to
// look at and is still the same message.
func printJSON(w io.Writer, m proto.Message) error {
	line, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
	if err != nil {
		return fmt.Errorf("printing a message: %w", err)
	}
	var compact bytes.Buffer // protojson puts blanks at random
	if err := json.Compact(&compact, line); err != nil {
		return fmt.Errorf("printing a message: %w", err)
	}
	_, err = io.WriteString(w, safeLine(compact.String())+"\n")
	return err
}

// short is the name of an enum value without the prefix of its enum.
func short(e protoreflect.Enum) string {
	values := e.Descriptor().Values()
	value := values.ByNumber(e.Number())
	if value == nil {
		return fmt.Sprintf("%d", e.Number())
	}
	prefix := strings.TrimSuffix(string(values.Get(0).Name()), "UNSPECIFIED")
	return strings.TrimPrefix(string(value.Name()), prefix)
}

// cents prints money to a hundredth of a cent.
func cents(nano int64) string {
	const hundredth = 10_000_000 // nanocents
	if nano > 0 && nano < hundredth {
		return "< 0.01 ¢"
	}
	return fmt.Sprintf("%.2f ¢", float64(nano)/1e9)
}

// lasted prints a duration as exactly as people want it.
func lasted(d time.Duration) string {
	switch {
	case d < 10*time.Millisecond:
		return d.Round(10 * time.Microsecond).String()
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < time.Minute:
		return d.Round(100 * time.Millisecond).String()
	default:
		return d.Round(time.Second).String()
	}
}

// count is a number with its noun.
func count[N ~int | ~uint32 | ~uint64](n N, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// maxInput bounds what is read from a file or standard input; the daemon has
// smaller bounds of its own.
const maxInput = 4 << 20

func readAllOf(r io.Reader) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxInput+1))
	if err == nil && len(data) > maxInput {
		err = errors.New("the input is over 4 MiB")
	}
	return data, err
}

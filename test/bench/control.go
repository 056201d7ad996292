package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
)

// childEnv marks the processes that the benchmark starts from its own binary.
const childEnv = "RUNNERD_BENCH_CHILD"

// order is one line from the benchmark to a child.
type order struct {
	Do   string          `json:"do"`
	Args json.RawMessage `json:"args,omitempty"`
}

// reply is one line from a child: its answer to an order, or where it listens.
type reply struct {
	Result json.RawMessage `json:"result,omitempty"`
	Error  string          `json:"error,omitempty"`
}

// orders are what a child can do, by name.
type orders map[string]func(ctx context.Context, args json.RawMessage) (any, error)

// obey says where the child listens, then does one order after the other until its input ends, which it also does
// when the benchmark dies.
func (o orders) obey(ctx context.Context, address string, in io.Reader, out io.Writer) error {
	enc, dec := json.NewEncoder(out), json.NewDecoder(in)
	answer := func(result any, err error) error {
		if err != nil {
			return enc.Encode(reply{Error: err.Error()})
		}
		b, err := json.Marshal(result)
		if err != nil {
			return err
		}
		return enc.Encode(reply{Result: b})
	}
	if err := answer(address, nil); err != nil {
		return err
	}
	for {
		var next order
		if err := dec.Decode(&next); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		do, ok := o[next.Do]
		if !ok {
			return fmt.Errorf("no order %q", next.Do)
		}
		if err := answer(do(ctx, next.Args)); err != nil {
			return err
		}
	}
}

// child is a process started from this binary that obeys orders.
type child struct {
	process
	address string

	mu  sync.Mutex // one order at a time
	in  io.WriteCloser
	enc *json.Encoder
	dec *json.Decoder
}

// startChild starts this binary with arguments and waits until it listens.
func startChild(ctx context.Context, args ...string) (*child, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self, args...)
	cmd.Env = append(os.Environ(), childEnv+"=1")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	c := &child{process: process{cmd: cmd}, in: in, enc: json.NewEncoder(in), dec: json.NewDecoder(bufio.NewReader(out))}
	if err := c.answer(&c.address); err != nil {
		c.stop()
		return nil, fmt.Errorf("start %v: %w", args, err)
	}
	return c, nil
}

// call gives an order and waits until it is done.
func (c *child) call(do string, args, result any) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	b, err := json.Marshal(args)
	if err != nil {
		return err
	}
	if err := c.enc.Encode(order{Do: do, Args: b}); err != nil {
		return fmt.Errorf("%s: %w", do, err)
	}
	if err := c.answer(result); err != nil {
		return fmt.Errorf("%s: %w", do, err)
	}
	return nil
}

func (c *child) answer(result any) error {
	var r reply
	if err := c.dec.Decode(&r); err != nil {
		return err
	}
	if r.Error != "" {
		return errors.New(r.Error)
	}
	if result == nil {
		return nil
	}
	return json.Unmarshal(r.Result, result)
}

// stop ends the child and waits for its end.
func (c *child) stop() {
	_ = c.in.Close()
	_ = c.cmd.Wait() // its exit says nothing about what was measured
}

package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

func verdictRows() []string { return []string{"verdict/time"} }

// verdict compares what it takes to judge a call under a full policy with what it takes to make one over the network:
// a unary one to another process that answers at once, with a request as large as the arguments. In each round both
// are means of many, one after the other, on a machine that does nothing else.
func (b *bench) verdict(ctx context.Context) error {
	calls, benchTime := 4000, "300ms"
	if b.quick {
		calls, benchTime = 20, "10x"
	}
	conn, err := grpc.NewClient(b.tools.address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	client := runnerdv1.NewToolHostServiceClient(conn)
	var judged, called []float64
	for round := range b.few(7) {
		one, err := b.judgeTime(ctx, benchTime)
		if err != nil {
			return fmt.Errorf("judge a call: %w", err)
		}
		other, err := callTime(ctx, client, calls)
		if err != nil {
			return fmt.Errorf("make a call: %w", err)
		}
		b.note("verdict round %d: %v to judge a call, %v to make one", round+1, one, other)
		judged, called = append(judged, us(one)), append(called, us(other))
	}
	b.add(row{"verdict/time", median(judged), "us", median(called), atMost(1)})
	return nil
}

func us(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }

// judgeTime returns how long the rules take to judge a call, from the benchmark that stands beside them.
func (b *bench) judgeTime(ctx context.Context, benchTime string) (time.Duration, error) {
	const name = "BenchmarkVerdict"
	cmd := exec.CommandContext(ctx, b.rules, "-test.run=^$", "-test.bench=^"+name+"$", "-test.benchtime="+benchTime)
	cmd.Dir = b.dir // it looks for no files
	out, err := cmd.CombinedOutput()
	if err != nil {
		return 0, fmt.Errorf("%w\n%s", err, out)
	}
	for lines := bufio.NewScanner(bytes.NewReader(out)); lines.Scan(); {
		fields := strings.Fields(lines.Text()) // name-CPUs, times, value, unit
		if len(fields) < 4 || !strings.HasPrefix(fields[0], name) || fields[3] != "ns/op" {
			continue
		}
		ns, err := strconv.ParseFloat(fields[2], 64)
		return time.Duration(ns), err
	}
	return 0, fmt.Errorf("no line of %s:\n%s", name, out)
}

// callTime returns how long a unary call with 1 KiB takes.
func callTime(ctx context.Context, client runnerdv1.ToolHostServiceClient, calls int) (time.Duration, error) {
	call := func(n int) error {
		for range n {
			if _, err := client.GetCall(ctx, &runnerdv1.GetCallRequest{Name: toolResult[:argumentBytes]}); err != nil {
				return err
			}
		}
		return nil
	}
	if err := call(calls / 10); err != nil { // to warm up
		return 0, err
	}
	began := time.Now()
	err := call(calls)
	return time.Since(began) / time.Duration(calls), err
}

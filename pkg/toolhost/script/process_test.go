package script_test

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/runnerd/runnerd/pkg/toolhost"
)

// listenAndSay listens on a free port and prints the address, for dialProcess.
func listenAndSay() (net.Listener, error) {
	lis, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // the process serves until it is killed
	if err != nil {
		return nil, err
	}
	_, err = fmt.Fprintln(os.Stdout, lis.Addr())
	return lis, err
}

// dialProcess starts a process that prints its address and returns a client of it. The caller waits for its end.
func dialProcess(t *testing.T, host *exec.Cmd) *toolhost.Client {
	t.Helper()
	out, err := host.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	host.Stderr = os.Stderr
	if err := host.Start(); err != nil {
		t.Fatal(err)
	}
	addr, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	c, err := toolhost.NewClient(map[string]toolhost.Endpoint{"host": {Address: strings.TrimSpace(addr)}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/dynamicpb"
)

// The commands of the README are run as they stand, by a shell. This test
// binary plays the programs that it finds on its path: runnerd itself, and as
// much of grpcurl as the README uses.
func TestMain(m *testing.M) {
	switch filepath.Base(os.Args[0]) {
	case "runnerd":
		main()
	case "grpcurl":
		if err := grpcurl(context.Background(), os.Args[1:], os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, "grpcurl:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func TestReadmeCommandsWork(t *testing.T) {
	t.Parallel()
	d := startDaemon(t, "", "127.0.0.1:0")
	home, work := t.TempDir(), t.TempDir()
	if err := os.MkdirAll(filepath.Join(home, ".local/share"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(d.dir, filepath.Join(home, ".local/share/runnerd")); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"bin/grpcurl", ".bin/runnerd"} {
		path := filepath.Join(work, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(self, path); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(filepath.Join(repository, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	var script strings.Builder
	script.WriteString("set -euo pipefail\n")
	for _, block := range shellBlock.FindAllSubmatch(text, -1) {
		if bytes.Contains(block[1], []byte("runnerd serve")) {
			continue // it runs already
		}
		script.Write(block[1])
		// A person does not type as fast as this: wait for what was started.
		script.WriteString("for run in $(.bin/runnerd runs --output json | sed -n 's/.*\"run_id\":\"\\([^\"]*\\)\".*/\\1/p'); do\n" +
			"  grpcurl -plaintext -d '{\"run_id\": \"'$run'\", \"until\": \"WAIT_UNTIL_IDLE\"}' 127.0.0.1:7780 runnerd.v1.RunService/WaitRun >/dev/null\n" +
			"done\n")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	shell := exec.CommandContext(ctx, "bash", "-x")
	shell.Dir = work
	shell.Env = []string{
		"PATH=" + filepath.Join(work, "bin") + ":" + os.Getenv("PATH"),
		"HOME=" + home, "RUNNERD_ADDR=" + d.addr, "TEST_ADDR=" + d.addr,
	}
	shell.Stdin = strings.NewReader(script.String())
	out, err := shell.CombinedOutput()
	if err != nil {
		t.Fatalf("%v:\n%s", err, out)
	}
	has(t, string(out), "clock: 20", "approved demo/announce (run lunch", "announced (1 so far): announce lunch at noon",
		"would be asked first", "would be blocked (READ_ONLY_MODE)", "approved demo/announce with other arguments", "grant 7 of run dinner is revoked",
		"run incomplete", "ok: ", "runnerd.v1.AuditService", "rpc StartRun", `"approvalDigest"`,
		`"verdict": "APPROVAL_VERDICT_APPROVE"`, `"type": "run_completed"`, `"stopReason": "STOP_REASON_COMPLETED"`)
}

// grpcurl is the part of grpcurl that the README uses, with its output.
func grpcurl(ctx context.Context, args []string, out io.Writer) error {
	data, headers := "", metadata.MD{}
	for len(args) > 0 && strings.HasPrefix(args[0], "-") {
		switch args[0] {
		case "-plaintext":
			args = args[1:]
		case "-d":
			data, args = args[1], args[2:]
		case "-H":
			key, value, _ := strings.Cut(args[1], ": ")
			headers.Append(key, value)
			args = args[2:]
		default:
			return fmt.Errorf("unknown flag %s", args[0])
		}
	}
	ctx = metadata.NewOutgoingContext(ctx, headers)
	if args[0] != "127.0.0.1:7780" {
		return fmt.Errorf("the README has another address: %s", args[0])
	}
	conn, err := grpc.NewClient(os.Getenv("TEST_ADDR"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	switch args[1] {
	case "list":
		return listServices(ctx, conn, out)
	case "describe":
		return describeSymbol(ctx, conn, args[2], out)
	}
	return invoke(ctx, conn, args[1], data, out)
}

func reflect(ctx context.Context, conn *grpc.ClientConn, req *reflectionv1.ServerReflectionRequest) (*reflectionv1.ServerReflectionResponse, error) {
	stream, err := reflectionv1.NewServerReflectionClient(conn).ServerReflectionInfo(ctx)
	if err != nil {
		return nil, err
	}
	if err := stream.Send(req); err != nil {
		return nil, err
	}
	return stream.Recv()
}

func listServices(ctx context.Context, conn *grpc.ClientConn, out io.Writer) error {
	got, err := reflect(ctx, conn, &reflectionv1.ServerReflectionRequest{
		MessageRequest: &reflectionv1.ServerReflectionRequest_ListServices{},
	})
	if err != nil {
		return err
	}
	for _, service := range got.GetListServicesResponse().GetService() {
		fmt.Fprintln(out, service.GetName())
	}
	return nil
}

// describeSymbol asks the server for the file of a symbol; what it looks like
// is of no matter.
func describeSymbol(ctx context.Context, conn *grpc.ClientConn, symbol string, out io.Writer) error {
	got, err := reflect(ctx, conn, &reflectionv1.ServerReflectionRequest{
		MessageRequest: &reflectionv1.ServerReflectionRequest_FileContainingSymbol{FileContainingSymbol: symbol},
	})
	if err != nil {
		return err
	}
	if len(got.GetFileDescriptorResponse().GetFileDescriptorProto()) == 0 {
		return fmt.Errorf("the server does not know %s", symbol)
	}
	_, err = fmt.Fprintln(out, "rpc "+symbol[strings.LastIndex(symbol, ".")+1:])
	return err
}

func invoke(ctx context.Context, conn *grpc.ClientConn, path, data string, out io.Writer) error {
	service, method, _ := strings.Cut(path, "/")
	found, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(service + "." + method))
	if err != nil {
		return err
	}
	rpc, ok := found.(protoreflect.MethodDescriptor)
	if !ok {
		return fmt.Errorf("%s is no method", path)
	}
	req := dynamicpb.NewMessage(rpc.Input())
	if err := protojson.Unmarshal([]byte(data), req); err != nil {
		return err
	}
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, "/"+path)
	if err != nil {
		return err
	}
	if err := stream.SendMsg(req); err != nil {
		return err
	}
	if err := stream.CloseSend(); err != nil {
		return err
	}
	for {
		resp := dynamicpb.NewMessage(rpc.Output())
		if err := stream.RecvMsg(resp); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		line, err := protojson.Marshal(resp)
		if err != nil {
			return err
		}
		var pretty bytes.Buffer
		if err := json.Indent(&pretty, line, "", "  "); err != nil {
			return err
		}
		fmt.Fprintln(out, pretty.String())
	}
}

// Command protodeps writes the .proto files that our own protos import, printed
// from the descriptors linked into the Go packages we already depend on. So the
// imports need no schema registry and no vendored copy, and they match the
// generated code at run time by construction.
//
// Usage: protodeps DIR
package main

import (
	"bytes"
	"fmt"
	"log"
	"os"
	"path/filepath"

	_ "buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go/buf/validate" // buf/validate/validate.proto
	"github.com/jhump/protoreflect/v2/protoprint"
	_ "google.golang.org/genproto/googleapis/rpc/code"       // google/rpc/code.proto
	_ "google.golang.org/genproto/googleapis/rpc/errdetails" // google/rpc/error_details.proto
	_ "google.golang.org/genproto/googleapis/rpc/status"     // google/rpc/status.proto
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// roots are the files our protos may import; what these import is written too.
var roots = []string{
	"buf/validate/validate.proto",
	"google/rpc/code.proto",
	"google/rpc/error_details.proto",
	"google/rpc/status.proto",
}

func main() {
	log.SetFlags(0)
	log.SetPrefix("protodeps: ")
	if len(os.Args) != 2 {
		log.Fatal("usage: protodeps DIR")
	}
	w := writer{dir: os.Args[1], written: map[string]bool{}}
	for _, path := range roots {
		fd, err := protoregistry.GlobalFiles.FindFileByPath(path)
		if err != nil {
			log.Fatalf("%s: %v", path, err)
		}
		if err := w.write(fd); err != nil {
			log.Fatal(err)
		}
	}
}

// writer writes each file once, below dir.
type writer struct {
	dir     string
	written map[string]bool
}

// write prints fd and everything it imports, except the well-known types, which
// every protobuf compiler carries itself.
func (w *writer) write(fd protoreflect.FileDescriptor) error {
	if fd.Package() == "google.protobuf" || w.written[fd.Path()] {
		return nil
	}
	w.written[fd.Path()] = true

	var buf bytes.Buffer
	if err := (&protoprint.Printer{}).PrintProtoFile(fd, &buf); err != nil {
		return fmt.Errorf("print %s: %w", fd.Path(), err)
	}
	path := filepath.Join(w.dir, filepath.FromSlash(fd.Path()))
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return err
	}
	if err := os.WriteFile(path, buf.Bytes(), 0o600); err != nil {
		return err
	}
	for i := range fd.Imports().Len() {
		if err := w.write(fd.Imports().Get(i).FileDescriptor); err != nil {
			return err
		}
	}
	return nil
}

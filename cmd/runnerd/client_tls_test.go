package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// credentialTeller is a daemon that tells the credential it was shown.
type credentialTeller struct {
	runnerdv1.UnimplementedRunServiceServer
}

func (credentialTeller) ListRuns(ctx context.Context, _ *runnerdv1.ListRunsRequest) (*runnerdv1.ListRunsResponse, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	id := "none"
	if shown := md.Get("authorization"); len(shown) == 1 {
		id = shown[0]
	}
	return &runnerdv1.ListRunsResponse{Runs: []*runnerdv1.Run{{RunId: id}}}, nil
}

func TestTokenGoesOverTLS(t *testing.T) {
	t.Parallel()
	pair, ca := selfSigned(t)
	l := freePort(t)
	server := grpc.NewServer(grpc.Creds(credentials.NewServerTLSFromCert(&pair)))
	runnerdv1.RegisterRunServiceServer(server, credentialTeller{})
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	defer func() {
		server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}()

	runs := func(args ...string) result {
		var out, errs lockedBuffer
		p := testProgram(&out, &errs, map[string]string{"RUNNERD_ADDR": l.Addr().String(), "RUNNERD_TOKEN": "secret"})
		code := p.run(t.Context(), append([]string{"runs", "-o", "json"}, args...))
		return result{code, out.String(), errs.String()}
	}
	got := messages(t, runs("--tls-ca", ca).must(t, exitOK).out, newRun)
	if len(got) != 1 || got[0].GetRunId() != "Bearer secret" {
		t.Errorf("got %v", got)
	}
	has(t, runs("--tls").must(t, exitUnreachable).err, "hint: give the certificates that sign its own") // nobody knows this one
	has(t, runs().must(t, exitUnreachable).err, "hint: if it takes TLS only")                           // it does not speak plain text
	has(t, runs("--tls-ca", ca, "--tls-cert", ca).must(t, exitUsage).err, "--tls-cert and --tls-key belong together")
	has(t, runs("--tls-ca", "/nowhere").must(t, exitUsage).err, "--tls-ca")
}

// selfSigned is a certificate for this machine, and the file to trust it by.
func selfSigned(t *testing.T) (pair tls.Certificate, file string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	file = filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, file
}

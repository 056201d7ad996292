package rpcclient

import (
	"context"
	"crypto/x509"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"github.com/runnerd/runnerd/pkg/internal/answerer"
)

// tellPeer notes who answered a call, for whoever listens.
func tellPeer(ctx context.Context, p *peer.Peer) {
	name := ""
	// A handshake ends well only with a certificate that the settings of the endpoint accept.
	if info, ok := p.AuthInfo.(credentials.TLSInfo); ok && len(info.State.PeerCertificates) > 0 {
		name = nameOf(info.State.PeerCertificates[0])
	}
	answerer.Tell(ctx, name)
}

// nameOf is the name of a certificate in the log: its SPIFFE id, else its first DNS name.
func nameOf(cert *x509.Certificate) string {
	if len(cert.URIs) == 1 && cert.URIs[0].Scheme == "spiffe" {
		return cert.URIs[0].String()
	}
	if len(cert.DNSNames) > 0 {
		return cert.DNSNames[0]
	}
	return ""
}

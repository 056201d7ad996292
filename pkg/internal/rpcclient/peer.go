package rpcclient

import (
	"context"
	"crypto/tls"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"github.com/runnerd/runnerd/pkg/internal/answerer"
)

// tellPeer notes who answered a call, for whoever listens.
func tellPeer(ctx context.Context, p *peer.Peer) {
	name := ""
	// A handshake ends well only with a certificate that the settings of the endpoint accept.
	if info, ok := p.AuthInfo.(credentials.TLSInfo); ok && len(info.State.PeerCertificates) > 0 {
		name = nameOf(&info.State)
	}
	answerer.Tell(ctx, name)
}

// nameOf is the name in the log of who is at the other end: the SPIFFE id of its certificate, else the name by which it
// was called, which is one of those in there. Addresses are not told as names; then it is the first name.
func nameOf(state *tls.ConnectionState) string {
	cert := state.PeerCertificates[0]
	if len(cert.URIs) == 1 && cert.URIs[0].Scheme == "spiffe" {
		return cert.URIs[0].String()
	}
	if state.ServerName != "" {
		return state.ServerName
	}
	if len(cert.DNSNames) > 0 {
		return cert.DNSNames[0]
	}
	return ""
}

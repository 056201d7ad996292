package config

import (
	"buf.build/go/protovalidate"
	"github.com/spiffe/go-spiffe/v2/spiffeid"

	configv1 "github.com/runnerd/runnerd/gen/runnerd/config/v1"
	"github.com/runnerd/runnerd/pkg/internal/credfile"
)

// checkService checks how a service is reached.
func checkService(at fieldPath, s Service) []*protovalidate.Violation {
	if s.GetScripted() != "" {
		const inside = "a scripted service runs inside runnerd and has no "
		switch {
		case s.GetTls() != nil:
			return []*protovalidate.Violation{at.field("tls").violation("tls", inside+"TLS")}
		case s.GetTokenFile() != "":
			return []*protovalidate.Violation{at.field("token_file").violation("token", inside+"token")}
		}
		return nil
	}
	all := checkTLS(at.field("tls"), s.GetTls())
	if file := s.GetTokenFile(); file != "" {
		at := at.field("token_file")
		if s.GetTls() == nil && !isLocal(s.GetAddress()) {
			all = append(all, at.violation("token", "a token is not sent to %s without TLS", s.GetAddress()))
		} else if _, err := readToken(file); err != nil {
			all = append(all, at.violation("token", "%v", err))
		}
	}
	return all
}

// checkTLS checks how a service is reached over TLS.
func checkTLS(at fieldPath, tls *configv1.Tls) []*protovalidate.Violation {
	if tls == nil {
		return nil
	}
	var all []*protovalidate.Violation
	if file := tls.GetCaFile(); file != "" {
		if _, err := readPool(file); err != nil {
			all = append(all, at.field("ca_file").violation("tls", "%v", err))
		}
	}
	if id := tls.GetSpiffeId(); id != "" {
		if _, err := spiffeid.FromString(id); err != nil {
			all = append(all, at.field("spiffe_id").violation("tls", "%v", err))
		}
		if tls.GetServerName() != "" {
			all = append(all, at.field("server_name").violation("tls", "is not looked at where there is a spiffe_id"))
		}
	}
	return append(all, checkPair(at, tls.GetCertFile(), tls.GetKeyFile())...)
}

// checkServerTLS checks the TLS of the API.
func checkServerTLS(at fieldPath, tls *configv1.ServerTls) []*protovalidate.Violation {
	if tls == nil {
		return nil
	}
	all := checkPair(at, tls.GetCertFile(), tls.GetKeyFile())
	if file := tls.GetClientCaFile(); file != "" {
		if _, err := readPool(file); err != nil {
			all = append(all, at.field("client_ca_file").violation("tls", "%v", err))
		}
	} else if tls.GetRequireClientCert() {
		all = append(all, at.field("require_client_cert").violation("tls", "needs a client_ca_file"))
	}
	return all
}

// checkPair checks a certificate and its private key. Neither of them is none; that one is missing is said of it.
func checkPair(at fieldPath, certFile, keyFile string) []*protovalidate.Violation {
	switch {
	case certFile == "" && keyFile == "":
		return nil
	case keyFile == "":
		return []*protovalidate.Violation{at.field("cert_file").violation("tls", "needs a key_file")}
	case certFile == "":
		return []*protovalidate.Violation{at.field("key_file").violation("tls", "needs a cert_file")}
	}
	if _, err := credfile.Read(certFile); err != nil {
		return []*protovalidate.Violation{at.field("cert_file").violation("tls", "%v", err)}
	}
	if _, err := readPair(certFile, keyFile); err != nil {
		return []*protovalidate.Violation{at.field("key_file").violation("tls", "%v", err)}
	}
	return nil
}

package auth

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// uriName is the one URI name of a certificate, as it stands there. A SPIFFE id has to be a valid one.
func uriName(cert *x509.Certificate) (string, error) {
	if len(cert.URIs) != 1 {
		return "", errors.New("it does not have exactly one URI name")
	}
	name := cert.URIs[0].String()
	return name, checkURI(name)
}

// checkURI says why a text cannot be the URI name of a certificate.
func checkURI(name string) error {
	uri, err := url.Parse(name)
	switch {
	case err != nil || !uri.IsAbs():
		return errors.New("its URI name is not an absolute URI")
	case strings.EqualFold(uri.Scheme, "spiffe"):
		if _, err = spiffeid.FromString(name); err != nil {
			return fmt.Errorf("its URI name is not a SPIFFE id: %w", err)
		}
	}
	return nil
}

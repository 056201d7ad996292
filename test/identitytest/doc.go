// Package identitytest makes credentials for tests: certificates of a CA of its own, and tokens of an OIDC issuer that
// lives as long as the test.
package identitytest

// Package auth tells who calls by the identities of a configuration: bearer tokens known by their hash, client
// certificates known by their URI name, and OIDC tokens of known issuers; and it gives who calls the roles that
// bindings say.
//
// A caller shows one credential. Where a call has an authorization header, that is the credential, and a client
// certificate only secures the connection it came over.
//
// Names that begin with "local:" belong to callers of this machine and cannot be had by any of these ways.
package auth

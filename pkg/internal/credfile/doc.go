// Package credfile reads files that hold credentials: certificates, private keys, tokens. They are replaced while a
// daemon runs, so they are read again when they have changed; and what is secret must not be readable by others.
package credfile

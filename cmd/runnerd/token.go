package main

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/runnerd/runnerd/pkg/auth"
)

// tokenBytes is how many random bytes a token has: nobody guesses it, so its
// hash needs neither salt nor effort.
const tokenBytes = 32

func newTokenCommand(p *program) *cobra.Command {
	return &cobra.Command{
		Use:   "token [PRINCIPAL]",
		Short: "Make a bearer token and its line of the configuration",
		Long: `Make a random token. It is printed once, on the first line, and kept nowhere: it is
for whoever calls. What follows is for auth.tokens of the configuration of the
daemon, which knows the token by its hash. See docs/security.md.`,
		Example: `  runnerd token alice
  runnerd token ci > ci.txt && head -n 1 ci.txt > ci.token && chmod 600 ci.token
  runnerd runs --token-file ci.token --tls-ca ca.pem --addr runnerd.internal:7780`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			principal := "NAME"
			if len(args) == 1 {
				principal = args[0]
			}
			if err := auth.CheckName(principal); err != nil {
				return usageError{err}
			}
			token, hash := newToken()
			fmt.Fprintf(p.out, "%s\n\n# below auth.tokens in the configuration:\n- {principal: %q, sha256: %s}\n", token, principal, hash)
			return nil
		},
	}
}

// newToken returns a token and its hash as the configuration has it.
func newToken() (token, hash string) {
	raw := make([]byte, tokenBytes)
	rand.Read(raw) // never fails
	token = base64.RawURLEncoding.EncodeToString(raw)
	sum := sha256.Sum256([]byte(token))
	return token, hex.EncodeToString(sum[:])
}

package runner

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// ApproverTokenFile is the name of the file in the data folder that holds the token of local:owner. The daemon and
// the command line find it by this name.
const ApproverTokenFile = "approver.token"

// approverTokenBytes is how many random bytes a token has.
const approverTokenBytes = 32

// LoadOrCreateApproverToken returns the approver token of a data folder, which exists. A folder without one gets one:
// 32 random bytes, base64url, in a file that only its owner can read. The file appears whole or not at all, so two
// processes that start together agree on one token. A file that others can read, that is no regular file, or that
// holds something else is refused: its content is not a secret any more, or never was one.
func LoadOrCreateApproverToken(dataDir string) (string, error) {
	path := filepath.Join(dataDir, ApproverTokenFile)
	token, err := readApproverToken(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return token, err
	}
	if err := writeApproverToken(dataDir, path); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", fmt.Errorf("create approver token: %w", err)
	}
	return readApproverToken(path)
}

func readApproverToken(path string) (string, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return "", fmt.Errorf("read approver token: %w", err)
	}
	if !info.Mode().IsRegular() {
		return "", fmt.Errorf("approver token %s: not a regular file", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("read approver token: %w", err)
	}
	defer f.Close()
	opened, err := f.Stat()
	if err != nil {
		return "", fmt.Errorf("read approver token: %w", err)
	}
	if !os.SameFile(info, opened) {
		return "", fmt.Errorf("approver token %s: replaced while it was read", path)
	}
	if perm := opened.Mode().Perm(); perm&0o077 != 0 {
		return "", fmt.Errorf("approver token %s: mode %04o lets others read it; remove it to get a new one", path, perm)
	}
	text, err := io.ReadAll(io.LimitReader(f, 1<<10))
	if err != nil {
		return "", fmt.Errorf("read approver token: %w", err)
	}
	token := strings.TrimSpace(string(text))
	if raw, err := base64.RawURLEncoding.DecodeString(token); err != nil || len(raw) != approverTokenBytes {
		return "", fmt.Errorf("approver token %s: not %d bytes in base64url; remove it to get a new one", path, approverTokenBytes)
	}
	return token, nil
}

// writeApproverToken makes the file under another name and links it, which fails if the name is taken.
func writeApproverToken(dir, path string) error {
	raw := make([]byte, approverTokenBytes)
	if _, err := rand.Read(raw); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, ApproverTokenFile+".*") // mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) //nolint:errcheck // a leftover holds a token that nobody accepts
	_, err = f.WriteString(base64.RawURLEncoding.EncodeToString(raw) + "\n")
	if err == nil {
		err = f.Sync()
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := os.Link(f.Name(), path); err != nil {
		return err
	}
	return syncDir(dir)
}

// syncDir makes a new name in a folder durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

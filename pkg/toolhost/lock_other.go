//go:build !unix

package toolhost

import "os"

// lockFile does nothing where there is no flock: keeping a ledger to one process is left to its user.
func lockFile(*os.File) error { return nil }

// unlockFile undoes lockFile.
func unlockFile(*os.File) error { return nil }

// syncDir does nothing where folders cannot be synced.
func syncDir(string) error { return nil }

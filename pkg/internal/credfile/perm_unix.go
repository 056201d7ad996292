//go:build unix

package credfile

import "io/fs"

// othersMay reports whether others than the owner may read or change a file.
func othersMay(perm fs.FileMode) bool { return perm&0o077 != 0 }

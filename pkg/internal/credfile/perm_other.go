//go:build !unix

package credfile

import "io/fs"

// othersMay says no: the mode of a file does not tell here who may read it.
func othersMay(fs.FileMode) bool { return false }

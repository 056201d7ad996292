//go:build !linux

package main

import (
	"errors"
	"fmt"
	"os"
	"time"
)

// errNotLinux: what processes use is read from what only Linux offers.
var errNotLinux = fmt.Errorf("benchmarks need Linux: %w", errors.ErrUnsupported)

type memory struct{ peak, anonymous, file int64 }

func cpuTime(int) (time.Duration, error) { return 0, errNotLinux }
func memoryOf(int) (memory, error)       { return memory{}, errNotLinux }
func children(int) ([]int, error)        { return nil, errNotLinux }
func datasync(*os.File) error            { return errNotLinux }

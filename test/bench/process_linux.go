package main

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// cpuTime returns the CPU time of a process, of all its threads, to the nanosecond.
func cpuTime(pid int) (time.Duration, error) {
	const processClock = 2 // CPUCLOCK_SCHED of all threads, as clock_getcpuclockid(3) makes it
	var ts unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|processClock), &ts); err != nil {
		return 0, fmt.Errorf("CPU time of process %d: %w", pid, err)
	}
	return time.Duration(ts.Nano()), nil
}

// memory is what a process holds in RAM, in bytes.
type memory struct {
	peak      int64 // most since it started or since resetPeak
	anonymous int64 // now, not backed by a file: heap and stacks
	file      int64 // now, pages of mapped files: binary and store, which the kernel can take back
}

func memoryOf(pid int) (memory, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return memory{}, err
	}
	var m memory
	for line := range bytes.Lines(status) {
		name, value, _ := bytes.Cut(line, []byte(":"))
		to := map[string]*int64{"VmHWM": &m.peak, "RssAnon": &m.anonymous, "RssFile": &m.file}[string(name)]
		if fields := bytes.Fields(value); to != nil && len(fields) > 0 {
			kib, err := strconv.ParseInt(string(fields[0]), 10, 64)
			if err != nil {
				return memory{}, fmt.Errorf("memory of process %d: %w", pid, err)
			}
			*to = kib << 10
		}
	}
	return m, nil
}

// children returns the child processes of the first thread of a process.
func children(pid int) ([]int, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if err != nil {
		return nil, err
	}
	var pids []int
	for f := range bytes.FieldsSeq(b) {
		n, err := strconv.Atoi(string(f))
		if err != nil {
			return nil, err
		}
		pids = append(pids, n)
	}
	return pids, nil
}

// datasync makes what was written to a file durable, as the store does.
func datasync(f *os.File) error { return unix.Fdatasync(int(f.Fd())) }

package main

import (
	"os/exec"
	"syscall"
	"time"
)

// process is a process that is measured.
type process struct {
	cmd *exec.Cmd
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// cpu returns the CPU time the process has used.
func (p *process) cpu() (time.Duration, error) { return cpuTime(p.pid()) }

// kill ends the process with SIGKILL and waits for its end.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait() // killed, so always an error
}

// terminate asks the process to end, waits for it, and kills it after 15 s.
func (p *process) terminate() error {
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	timer := time.AfterFunc(15*time.Second, func() { _ = p.cmd.Process.Kill() })
	defer timer.Stop()
	return p.cmd.Wait()
}

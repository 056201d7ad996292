package main

import "golang.org/x/sys/unix"

// How the attributes of a terminal are read, and set with its input dropped.
const (
	getTermios   = unix.TCGETS
	flushTermios = unix.TCSETSF
)

package main

import "syscall"

// childAttributes keep signals at the terminal from the child, which is told to end by us, and have it end with us however
// we end.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

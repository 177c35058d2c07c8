//go:build unix && !linux

package main

import "syscall"

// childAttributes keep signals at the terminal from the child, which is told to end by us.
func childAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

//go:build (peers || dataplane) && linux

package e2e

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
)

// tick is the unit of times under /proc on Linux, in seconds.
const tick = .01

// cpuOfPID is how long a process has used a core, in seconds.
func cpuOfPID(t *testing.T, pid int) float64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	// The name, in parentheses, may hold anything; the times are the 14th and 15th field.
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	return tick * (number(t, fields[11]) + number(t, fields[12]))
}

func number(t *testing.T, text string) float64 {
	t.Helper()
	x, err := strconv.ParseFloat(text, 64)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// variable is an environment variable or what stands for it.
func variable(name, usual string) string {
	if value := os.Getenv(name); value != "" {
		return value
	}
	return usual
}

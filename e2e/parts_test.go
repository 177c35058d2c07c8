//go:build (doors || vllm || peers || dataplane || cluster) && unix

package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// What the tests run is made once by TestMain, which leaves the paths in the
// environment. Whoever sets one of them beforehand has that program tested instead.
const (
	binaryVariable   = "SLUICE_E2E_BINARY"
	pythonVariable   = "SLUICE_E2E_PYTHON"
	envoyVariable    = "SLUICE_E2E_ENVOY"
	oldEnvoyVariable = "SLUICE_E2E_ENVOY_139"
)

// part is a program that a suite needs beside the gateway: what the variable names, or else what make provides.
type part struct {
	variable string
	make     func() (path string, err error)
}

// provideAll makes what the environment doesn't name: the gateway in the folder, and what the suite needs beside it.
func provideAll(folder string) error {
	err := provide(binaryVariable, func() (string, error) { return buildGateway(folder) })
	for _, p := range needed() {
		err = errors.Join(err, provide(p.variable, p.make))
	}
	return err
}

// provide sets the variable to what build returns, unless it is set already.
func provide(variable string, build func() (string, error)) error {
	if os.Getenv(variable) != "" {
		return nil
	}
	value, err := build()
	if err != nil {
		return err
	}
	return os.Setenv(variable, value)
}

// buildGateway builds the command; with the race detector, every request of these
// tests also looks for data races. Without it, it is built as it is released: without cgo.
func buildGateway(folder string) (string, error) {
	binary := filepath.Join(folder, "sluice")
	fmt.Fprintf(os.Stderr, "e2e: building ./cmd/sluice, race detector %v\n", raceDetector)
	build := exec.Command("go", "build", "-race", "-o", binary, "./cmd/sluice")
	build.Dir = ".."
	if !raceDetector {
		build.Args[2] = "-trimpath"
		build.Env = append(build.Environ(), "CGO_ENABLED=0")
	}
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("cannot build ./cmd/sluice (the race detector needs cgo and a C compiler): %w\n%s", err, strings.TrimSpace(string(out)))
	}
	return binary, nil
}

//go:build (doors || vllm || peers || dataplane) && unix

package e2e

import (
	"fmt"
	"os"
	"testing"
)

func TestMain(m *testing.M) {
	if len(os.Args) == 4 && os.Args[1] == instantRole { // one of the neighbours of another run
		if err := beInstant(os.Args[2], os.Args[3]); err != nil {
			fmt.Fprintln(os.Stderr, "engine:", err)
			os.Exit(1)
		}
		return
	}
	folder, err := os.MkdirTemp("", "sluice-e2e-")
	if err == nil {
		err = provideAll(folder)
	}
	code := 1
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
	} else {
		code = m.Run()
	}
	os.RemoveAll(folder)
	os.Exit(code)
}

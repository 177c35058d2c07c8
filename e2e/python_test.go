//go:build (doors || vllm || peers || dataplane || cluster) && unix

package e2e

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
)

// packages are what an environment holds, and how it comes there.
type packages struct {
	name         string                                  // of the environment
	requirements string                                  // file that pins them
	size         string                                  // for whoever waits
	modules      []string                                // that must be found there
	install      func(python, requirements string) error // nil means pip
}

// pip installs the file's packages.
func pip(python, requirements string) error {
	return narrate(python, "-m", "pip", "install", "--disable-pip-version-check", "--no-input", "--progress-bar", "off", "-r", requirements)
}

// python is the part that is an interpreter with the packages.
func (p packages) python() part {
	return part{pythonVariable, func() (string, error) { return preparePython(p) }}
}

// preparePython returns the interpreter of a virtual environment with what the file of
// requirements pins, making it on the first run. It lives in the user's cache,
// not in the checkout, so that a fresh clone finds what was fetched before.
func preparePython(p packages) (string, error) {
	requirements, err := filepath.Abs(p.requirements)
	if err != nil {
		return "", err
	}
	pins, err := os.ReadFile(requirements)
	if err != nil {
		return "", fmt.Errorf("cannot read the pinned packages %q: %w", requirements, err)
	}
	base, version, err := findPython()
	if err != nil {
		return "", err
	}
	cache, err := cacheFolder()
	if err != nil {
		return "", err
	}
	key := sha256.Sum256(fmt.Appendf(nil, "%s %s %s/%s\n%s", base, version, runtime.GOOS, runtime.GOARCH, pins))
	environment := filepath.Join(cache, fmt.Sprintf("%s-%x", p.name, key[:8]))

	unlock, err := lock(environment + ".lock")
	if err != nil {
		return "", err
	}
	defer unlock()
	python := filepath.Join(environment, "bin", "python")
	_, err = os.Stat(python)
	if err == nil {
		if err = holdsPins(python, requirements); err == nil {
			return python, nil
		}
		fmt.Fprintf(os.Stderr, "e2e: the Python environment %s is damaged and is made again: %v\n", environment, err)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("cannot use the Python environment %q; delete it: %w", environment, err)
	}
	return python, p.makeEnvironment(base, environment, requirements)
}

// holdsPins tells what an environment lacks of the file's packages. It looks at what is
// noted of each and at whether its files are there, not into them.
func holdsPins(python, requirements string) error {
	out, err := exec.Command(python, "-c", `
import importlib.metadata as m, sys
for line in open(sys.argv[1]):
    name, pinned, version = line.split("#")[0].strip(" \\\n").partition("==")
    if not pinned:
        continue
    try:
        found = m.distribution(name)
    except m.PackageNotFoundError:
        sys.exit(f"{name} is missing")
    if found.version != version:
        sys.exit(f"{name} is {found.version}, not {version}")
    files = found.files or []
    if not files or not all(f.locate().exists() for f in files[:: max(1, len(files) // 20)] if f.suffix != ".pyc" and ".." not in f.parts):
        sys.exit(f"{name} has lost files")
`, requirements).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s (%w)", strings.TrimSpace(string(out)), err)
	}
	return nil
}

// makeEnvironment builds beside its final name and renames at the end, so a run
// that dies half-way leaves nothing that looks complete. The interpreter survives
// a rename; console scripts wouldn't, and none is used.
func (p *packages) makeEnvironment(base, environment, requirements string) error {
	started := environment + ".new"
	if err := os.RemoveAll(started); err != nil {
		return fmt.Errorf("cannot clear %q: %w", started, err)
	}
	fmt.Fprintf(os.Stderr, "e2e: making the Python environment %s (once, about %s)\n", environment, p.size)
	if err := narrate(base, "-m", "venv", started); err != nil {
		return fmt.Errorf("cannot make a virtual environment with %q; install Python's venv module (on Debian the package python3-venv): %w", base, err)
	}
	python := filepath.Join(started, "bin", "python")
	install := pip
	if p.install != nil {
		install = p.install
	}
	if err := install(python, requirements); err != nil {
		return fmt.Errorf("cannot install %q; is the package index reachable, and is there room for %s?: %w", requirements, p.size, err)
	}
	if err := holdsPins(python, requirements); err != nil {
		return fmt.Errorf("cannot use what was installed from %q: %w", requirements, err)
	}
	if err := narrate(python, "-c", "import "+strings.Join(p.modules, ", ")); err != nil {
		return fmt.Errorf("cannot import the installed packages of %q: %w", requirements, err)
	}
	if err := errors.Join(os.RemoveAll(environment), os.Rename(started, environment)); err != nil {
		return fmt.Errorf("cannot put the Python environment in place: %w", err)
	}
	fmt.Fprintln(os.Stderr, "e2e: the Python environment is ready")
	return nil
}

// narrate runs a step of the installation with its output on standard error.
func narrate(name string, args ...string) error {
	step := exec.Command(name, args...)
	step.Stdout, step.Stderr = os.Stderr, os.Stderr
	return step.Run()
}

// findPython returns the first interpreter on the path that is 3.11 or newer,
// and its version.
func findPython() (path, version string, err error) {
	var seen []string
	for _, name := range []string{"python3", "python3.14", "python3.13", "python3.12", "python3.11", "python"} {
		path, err := exec.LookPath(name)
		if err != nil {
			continue
		}
		out, err := exec.Command(path, "-c", "import sys; print('%d.%d.%d' % sys.version_info[:3], sys.version_info >= (3, 11))").Output()
		version, recent, _ := strings.Cut(strings.TrimSpace(string(out)), " ")
		if err == nil && recent == "True" {
			return path, version, nil
		}
		seen = append(seen, strings.TrimSpace(name+" "+version))
	}
	return "", "", fmt.Errorf("cannot find Python 3.11 or newer on PATH (found: %s); install it with its venv module, or name an interpreter that has requirements.txt installed in %s",
		strings.Join(seen, ", "), pythonVariable)
}

// cacheFolder returns where environments are kept, made if it is missing.
func cacheFolder() (string, error) {
	cache := os.Getenv("XDG_CACHE_HOME")
	if cache == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", fmt.Errorf("cannot find a cache folder; set HOME or XDG_CACHE_HOME: %w", err)
		}
		cache = filepath.Join(home, ".cache")
	}
	folder := filepath.Join(cache, "sluice")
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return "", fmt.Errorf("cannot make the cache folder %q; set XDG_CACHE_HOME to a folder that can be written: %w", folder, err)
	}
	return folder, nil
}

// lock takes an exclusive lock on the file and waits for whoever holds it. The
// kernel drops the lock of a process that dies.
func lock(path string) (unlock func(), err error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("cannot open the lock %q: %w", path, err)
	}
	if syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil {
		fmt.Fprintln(os.Stderr, "e2e: waiting for another run that makes the Python environment")
		if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX); err != nil {
			return nil, fmt.Errorf("cannot lock %q: %w", path, err)
		}
	}
	return func() { file.Close() }, nil
}

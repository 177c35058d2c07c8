//go:build cluster && linux

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// enginePort is where model servers listen in pods.
const enginePort = "8000"

// deployment is a manifest of pods labelled app: name, of which each runs a container.
func deployment(name string, replicas int, container, rest string) string {
	return fmt.Sprintf(`apiVersion: apps/v1
kind: Deployment
metadata: {name: %[1]s}
spec:
  replicas: %[2]d
  selector: {matchLabels: {app: %[1]s}}
  template:
    metadata: {labels: {app: %[1]s}}
    spec:
      terminationGracePeriodSeconds: 5
      automountServiceAccountToken: false
      containers: [%[3]s]
%[4]s`, name, replicas, container, rest)
}

// probed is what a model server's container says of its port: it is ready when it says so.
const probed = `ports: [{containerPort: ` + enginePort + `}], readinessProbe: {httpGet: {path: /health, port: ` + enginePort + `}, periodSeconds: 1}`

// simulated are pods with a simulated vLLM each.
func simulated(name, model string, replicas int, args ...string) string {
	all := append([]string{"sim", "--profile", "l8-h100", "--host", "0.0.0.0", "--port", enginePort, "--model", model}, args...)
	return deployment(name, replicas, fmt.Sprintf(`{name: engine, image: %q, args: %s, %s}`, image("sluice"), list(all), probed), "")
}

// real are pods with a llama.cpp server each. Its image has the model and the few lines that start a server.
func real(t *testing.T, name, model string, replicas int, args ...string) string {
	t.Helper()
	return python(t, name, replicas, probed, append([]string{"/engine/engine.py", "--until-told", "--host", "0.0.0.0", "--port", enginePort, "--alias", model}, args...)...)
}

// python are pods that run it. Python and what it needs are this machine's, mounted where they are.
func python(t *testing.T, name string, replicas int, probe string, args ...string) string {
	t.Helper()
	interpreter := os.Getenv(pythonVariable)
	var mounts, volumes strings.Builder
	for i, folder := range pythonFolders(t, interpreter) {
		fmt.Fprintf(&mounts, "{name: f%d, mountPath: %q, readOnly: true}, ", i, folder)
		fmt.Fprintf(&volumes, "      - {name: f%d, hostPath: {path: %q}}\n", i, folder)
	}
	container := fmt.Sprintf(`{name: engine, image: %q, command: %s, env: [{name: PYTHONDONTWRITEBYTECODE, value: "1"}], %s, volumeMounts: [%s]}`,
		image("engine"), list(append([]string{interpreter}, args...)), probe, mounts.String())
	return deployment(name, replicas, container, "      volumes:\n"+volumes.String())
}

// pythonFolders are those of this machine in which an interpreter finds itself, its packages and its libraries.
func pythonFolders(t *testing.T, python string) []string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), python, "-c", "import sys; print(sys.base_prefix); print(sys.prefix)").Output()
	if err != nil {
		t.Fatalf("cannot ask %q where it is: %v", python, err)
	}
	var folders []string
	for _, folder := range append([]string{"/usr", "/lib", "/lib64"}, strings.Fields(string(out))...) {
		inside := slices.ContainsFunc(folders, func(above string) bool { return strings.HasPrefix(folder+"/", above+"/") })
		if _, err := os.Stat(folder); err == nil && !inside {
			folders = append(folders, folder)
		}
	}
	return folders
}

// list is a list of strings as YAML has it.
func list(all []string) string {
	quoted := make([]string, len(all))
	for i, s := range all {
		quoted[i] = fmt.Sprintf("%q", s)
	}
	return "[" + strings.Join(quoted, ", ") + "]"
}

//go:build kube

package apiserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/yaml"

	"github.com/sluice-gateway/sluice/api/v1alpha1"
)

// cluster is an API server with our definitions, for all tests of the package; each works in names of its own.
type cluster struct {
	config     *rest.Config
	client     client.Client
	kubeconfig string
}

// shared holds the cluster that TestMain starts.
var shared cluster

func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (code int, err error) {
	log.SetLogger(logr.Discard()) // what goes wrong is an error, too
	assets := os.Getenv("KUBEBUILDER_ASSETS")
	if assets == "" {
		return 1, errors.New("KUBEBUILDER_ASSETS names no folder with etcd, kube-apiserver and kubectl: run make test-kube, which builds them")
	}
	env := &envtest.Environment{
		BinaryAssetsDirectory: assets,
		CRDDirectoryPaths:     []string{"../../deploy/crds"},
		ErrorIfCRDPathMissing: true,
		// A busy machine takes its time.
		ControlPlaneStartTimeout: 3 * time.Minute,
		ControlPlaneStopTimeout:  time.Minute,
	}
	shared.config, err = env.Start()
	if err != nil {
		return 1, fmt.Errorf("cannot start an API server: %w", err)
	}
	defer func() { err = errors.Join(err, env.Stop()) }()
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return 1, err
	}
	if shared.client, err = client.New(shared.config, client.Options{Scheme: scheme}); err != nil {
		return 1, err
	}
	folder, err := os.MkdirTemp("", "sluice-apiserver")
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
	shared.kubeconfig = filepath.Join(folder, "kubeconfig")
	user, err := env.AddUser(envtest.User{Name: "tester", Groups: []string{"system:masters"}}, nil)
	if err != nil {
		return 1, err
	}
	text, err := user.KubeConfig()
	if err != nil {
		return 1, err
	}
	if err := os.WriteFile(shared.kubeconfig, text, 0o600); err != nil {
		return 1, err
	}
	return m.Run(), nil
}

// kubectl runs the real one; what it says comes back whether it fails or not.
func kubectl(t *testing.T, stdin string, args ...string) string {
	t.Helper()
	c := exec.CommandContext(t.Context(), filepath.Join(os.Getenv("KUBEBUILDER_ASSETS"), "kubectl"), append([]string{"--kubeconfig", shared.kubeconfig, "--cache-dir", t.TempDir()}, args...)...)
	c.Stdin = bytes.NewBufferString(stdin)
	out, err := c.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return string(out)
}

// object reads one YAML document.
func object(t *testing.T, doc string) *unstructured.Unstructured {
	t.Helper()
	u := new(unstructured.Unstructured)
	if err := yaml.Unmarshal([]byte(doc), &u.Object); err != nil {
		t.Fatalf("%v in %s", err, doc)
	}
	if u.GetNamespace() == "" {
		u.SetNamespace("default")
	}
	return u
}

// apply is kubectl apply --server-side for a manager.
func apply(ctx context.Context, u *unstructured.Unstructured, manager string, options ...client.ApplyOption) error {
	return shared.client.Apply(ctx, client.ApplyConfigurationFromUnstructured(u), append([]client.ApplyOption{client.FieldOwner(manager)}, options...)...)
}

// keyOf is an object's namespace and name.
func keyOf(u *unstructured.Unstructured) client.ObjectKey { return client.ObjectKeyFromObject(u) }

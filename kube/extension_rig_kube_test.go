//go:build kube

package kube

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocfilter "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocservice "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/go-logr/logr"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/types/known/structpb"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// hostAddress is an address of the test's own network that an EndpointSlice may have.
const hostAddress = "10.10.0.1"

// insideVariable is set where the test has a network of its own.
const insideVariable = "SLUICE_TEST_NETWORK"

// ownNetwork runs the test that calls it once more, in a network of its own with root's rights: Envoy Gateway and its Envoy listen
// at fixed ports. It reports whether that is where it is called.
func ownNetwork(t *testing.T) bool {
	t.Helper()
	if os.Getenv(insideVariable) != "" {
		return true
	}
	// Envoy Gateway and Envoys call the extension by its Service's name.
	hosts := filepath.Join(t.TempDir(), "hosts")
	must(t, os.WriteFile(hosts, []byte("127.0.0.1 localhost\n"+hostAddress+" "+extensionName+".envoy-gateway-system.svc\n"), 0o644))
	script := "ip link set lo up; ip addr add " + hostAddress + "/32 dev lo; mount --bind " + hosts + " /etc/hosts; exec \"$@\""
	c := exec.CommandContext(t.Context(), "unshare", "--net", "--mount", "--propagation", "private", "sh", "-ec", script, "sh",
		os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout=9m")
	c.Env = append(os.Environ(), insideVariable+"=yes")
	c.Cancel = func() error { return c.Process.Signal(syscall.SIGTERM) }
	c.Stdout, c.Stderr = os.Stdout, os.Stderr
	if err := c.Run(); err != nil {
		t.Fatalf("the test in its own network (it takes root, util-linux and iproute2): %v", err)
	}
	return false
}

// moduleFolder is where Go keeps a module, in the version that a module of test/cluster/tools names.
func moduleFolder(t *testing.T, tool, module string) string {
	t.Helper()
	c := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", module)
	c.Dir = filepath.Join("../test/cluster/tools", tool)
	out, err := c.Output()
	if err != nil {
		t.Fatalf("cannot download module %q: %v: %s", module, err, out)
	}
	var m struct{ Dir string }
	if err := json.Unmarshal(out, &m); err != nil {
		t.Fatal(err)
	}
	return m.Dir
}

// gatewayRig is a real API server, a real Envoy Gateway that asks an Extension, and the real Envoy that it starts.
type gatewayRig struct {
	t      *testing.T
	api    *rest.Config
	client client.Client
	folder string

	stopExtension func()
	log           *logBuffer
}

func newGatewayRig(t *testing.T) *gatewayRig {
	t.Helper()
	log.SetLogger(logr.Discard())
	charts := filepath.Join(moduleFolder(t, "envoy-gateway", "github.com/envoyproxy/gateway"), "charts/gateway-helm/charts/crds/crds")
	env := &envtest.Environment{
		CRDDirectoryPaths: []string{filepath.Join(charts, "gatewayapi-crds.yaml"), filepath.Join(charts, "generated"),
			filepath.Join(moduleFolder(t, "definitions", "sigs.k8s.io/gateway-api-inference-extension"), "config/crd/bases")},
		ErrorIfCRDPathMissing: true, ControlPlaneStartTimeout: 3 * time.Minute, ControlPlaneStopTimeout: time.Minute,
	}
	env.ControlPlane.GetAPIServer().Configure().Set("advertise-address", hostAddress) // it finds none by itself without a way out
	config, err := env.Start()
	must(t, err)
	t.Cleanup(func() { must(t, env.Stop()) })
	r := &gatewayRig{t: t, api: config, folder: t.TempDir(), log: new(logBuffer)}
	feed, err := newPoolFeed(config, slog.New(slog.DiscardHandler))
	must(t, err)
	r.client, err = client.New(config, client.Options{Scheme: feed.scheme})
	must(t, err)
	for _, ns := range []string{"envoy-gateway-system", "models", "other"} {
		must(t, r.client.Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": ns}}}))
	}
	r.startExtension()
	r.startEnvoyGateway()
	return r
}

// extensionPort is where the Extension listens: a restart keeps it.
const extensionPort = "18500"

func (r *gatewayRig) startExtension() {
	r.t.Helper()
	e, err := NewExtension(r.api, ExtensionOptions{Listen: hostAddress + ":" + extensionPort, GatewayClass: "eg", SystemNamespace: "envoy-gateway-system",
		Now: time.Now, Log: slog.New(slog.NewTextHandler(r.log, nil))})
	must(r.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := e.Run(ctx); err != nil {
			r.t.Error(err)
		}
	}()
	r.stopExtension = sync.OnceFunc(func() { cancel(); <-ended })
	r.t.Cleanup(func() { r.stopExtension() })
}

// startEnvoyGateway starts it with a root of its own, since it looks for certificates in /certs and nowhere else.
func (r *gatewayRig) startEnvoyGateway() {
	r.t.Helper()
	program := filepath.Join(os.Getenv("KUBEBUILDER_ASSETS"), "envoy-gateway")
	envoy := os.Getenv("SLUICE_E2E_ENVOY")
	for _, file := range []string{program, envoy} {
		if info, err := os.Stat(file); err != nil || info.IsDir() {
			r.t.Fatalf("there is no %q: KUBEBUILDER_ASSETS has to have envoy-gateway beside the API server, and SLUICE_E2E_ENVOY to name an Envoy", file)
		}
	}
	home := filepath.Join(r.folder, "gateway")
	versions := filepath.Join(home, "data/envoy-versions/1.40.0/bin")
	must(r.t, os.MkdirAll(versions, 0o755))
	must(r.t, os.Symlink(envoy, filepath.Join(versions, "envoy")))
	if out, err := exec.CommandContext(r.t.Context(), program, "certgen", "--local", "--config-home", filepath.Join(home, "config")).CombinedOutput(); err != nil {
		r.t.Fatalf("%v: %s", err, out)
	}
	r.eventually(r.t, "the extension has made its keys", func() bool {
		return r.client.Get(r.t.Context(), types.NamespacedName{Namespace: "envoy-gateway-system", Name: extensionCA}, new(corev1.Secret)) == nil
	})
	config := strings.NewReplacer("HOME", home, "PORT", extensionPort).Replace(envoyGatewayFileText)
	must(r.t, os.WriteFile(filepath.Join(home, "envoy-gateway.yaml"), []byte(config), 0o600))
	must(r.t, os.WriteFile(filepath.Join(home, "kubeconfig"), kubeconfigOf(r.t, r.api), 0o600))
	root := filepath.Join(r.folder, "root")
	script := `mkdir "$1"; mount -t tmpfs tmpfs "$1"
		for folder in /*; do [ ! -d "$folder" ] || { mkdir "$1$folder"; mount --rbind "$folder" "$1$folder"; }; done
		cp -r "$2/config/certs/envoy-gateway" "$1/certs"
		exec chroot "$1" "$3" server --config-path "$2/envoy-gateway.yaml"`
	c := exec.Command("unshare", "--mount", "--propagation", "private", "sh", "-ec", script, "sh", root, home, program)
	c.Env = append(os.Environ(), "ENVOY_GATEWAY_NAMESPACE=envoy-gateway-system", "KUBECONFIG="+filepath.Join(home, "kubeconfig"))
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	output, err := os.Create(filepath.Join(r.folder, "envoy-gateway.log"))
	must(r.t, err)
	c.Stdout, c.Stderr = output, output
	must(r.t, c.Start())
	r.t.Cleanup(func() {
		_ = syscall.Kill(-c.Process.Pid, syscall.SIGKILL)
		_ = c.Wait()
		if r.t.Failed() {
			text, _ := os.ReadFile(output.Name())
			r.t.Logf("the end of Envoy Gateway's log:\n%s", text[max(0, len(text)-6000):])
			r.t.Logf("the extension's log:\n%s", r.log)
		}
	})
	r.apply(`
apiVersion: gateway.envoyproxy.io/v1alpha1
kind: EnvoyProxy
metadata: {name: host, namespace: envoy-gateway-system}
spec:
  provider: {type: Host, host: {envoyVersion: 1.40.0}}
  mergeGateways: true # an Envoy for each has to have a host of its own
  logging: {level: {default: warn}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: eg}
spec:
  controllerName: gateway.envoyproxy.io/gatewayclass-controller
  parametersRef: {group: gateway.envoyproxy.io, kind: EnvoyProxy, name: host, namespace: envoy-gateway-system}
`)
}

const envoyGatewayFileText = `
apiVersion: gateway.envoyproxy.io/v1alpha1
kind: EnvoyGateway
gateway: {controllerName: gateway.envoyproxy.io/gatewayclass-controller}
provider:
  type: Custom
  custom:
    resource: {type: Kubernetes, kubernetes: {leaderElection: {disable: true}}}
    infrastructure:
      type: Host
      host: {configHome: HOME/config, dataHome: HOME/data, stateHome: HOME/state, runtimeDir: HOME/run}
extensionApis: {enableBackend: true}
logging: {level: {default: info}}
extensionManager:
  maxMessageSize: 256Mi
  backendResources: [{group: inference.networking.k8s.io, version: v1, kind: InferencePool}]
  hooks:
    xdsTranslator:
      post: [Route, Translation]
      translation: {listener: {includeAll: true}, route: {includeAll: true}, cluster: {includeAll: true}, secret: {includeAll: true}}
  service:
    fqdn: {hostname: inference-gateway-extension.envoy-gateway-system.svc, port: PORT}
    tls:
      certificateRef: {name: inference-gateway-extension-ca, namespace: envoy-gateway-system}
      clientCertificateRef: {name: inference-gateway-extension-client, namespace: envoy-gateway-system}
`

// kubeconfigOf is a file for programs that reach the API server as the test does.
func kubeconfigOf(t *testing.T, c *rest.Config) []byte {
	t.Helper()
	text, err := clientcmd.Write(clientcmdapi.Config{CurrentContext: "x",
		Clusters:  map[string]*clientcmdapi.Cluster{"x": {Server: c.Host, CertificateAuthorityData: c.CAData}},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{"x": {ClientCertificateData: c.CertData, ClientKeyData: c.KeyData}},
		Contexts:  map[string]*clientcmdapi.Context{"x": {Cluster: "x", AuthInfo: "x"}}})
	must(t, err)
	return text
}

// apply writes documents.
func (r *gatewayRig) apply(docs string) {
	r.t.Helper()
	for _, u := range objectsIn(r.t, docs) {
		must(r.t, r.client.Apply(r.t.Context(), client.ApplyConfigurationFromUnstructured(u), client.FieldOwner("test"), client.ForceOwnership))
	}
}

// remove deletes what documents name.
func (r *gatewayRig) remove(docs string) {
	r.t.Helper()
	for _, u := range objectsIn(r.t, docs) {
		must(r.t, r.client.Delete(r.t.Context(), u))
	}
}

func objectsIn(t *testing.T, docs string) []*unstructured.Unstructured {
	t.Helper()
	var list []*unstructured.Unstructured
	d := yaml.NewYAMLOrJSONDecoder(strings.NewReader(docs), 4096)
	for {
		u := new(unstructured.Unstructured)
		if err := d.Decode(&u.Object); err == io.EOF {
			return list
		} else if err != nil {
			t.Fatal(err)
		}
		if u.Object != nil {
			list = append(list, u)
		}
	}
}

// model is a pod that serves, and the server that is in it.
func (r *gatewayRig) model(name, app, address string, ports ...int) {
	r.t.Helper()
	for _, port := range ports {
		l, err := net.Listen("tcp", fmt.Sprintf("%s:%d", address, port))
		must(r.t, err)
		s := &http.Server{Handler: http.HandlerFunc(serveModel), Protocols: new(http.Protocols)}
		s.Protocols.SetHTTP1(true)
		if app == "h2c" {
			s.Protocols.SetHTTP1(false)
			s.Protocols.SetUnencryptedHTTP2(true)
		}
		go func() { _ = s.Serve(l) }()
		r.t.Cleanup(func() { _ = s.Close() })
	}
	r.pod(name, app, address)
}

// pod is one that is ready at an address.
func (r *gatewayRig) pod(name, app, address string) {
	r.t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "models", Name: name, Labels: map[string]string{"app": app}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "x", Image: "x"}}}}
	must(r.t, r.client.Create(r.t.Context(), pod))
	pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: address, PodIPs: []corev1.PodIP{{IP: address}},
		Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}
	must(r.t, r.client.Status().Update(r.t.Context(), pod))
}

// served is what a model says of a request.
type served struct {
	By, Protocol, Body string
	Headers            http.Header
}

// serveModel answers with what it got. The path /slow/SECONDS is answered piece by piece.
func serveModel(w http.ResponseWriter, q *http.Request) {
	body, _ := io.ReadAll(q.Body)
	by := q.Context().Value(http.LocalAddrContextKey).(net.Addr).String()
	var seconds int
	if n, _ := fmt.Sscanf(q.URL.Path, "/slow/%d", &seconds); n == 1 {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for i := range seconds {
			fmt.Fprintf(w, "data: %d\n\n", i)
			w.(http.Flusher).Flush()
			<-tick.C
		}
		fmt.Fprintln(w, "data: [DONE]")
		return
	}
	_ = json.NewEncoder(w).Encode(served{by, q.Proto, string(body), q.Header})
}

// testPicker picks what the header x-want says, after the time that x-wait says, in full duplex or with bodies held.
type testPicker struct {
	extprocservice.UnimplementedExternalProcessorServer
	name string
	// selects: it names no endpoint, but a model, in the header x-model, and has the route looked for anew.
	selects bool
}

// selfSigned is TLS with a certificate that nobody signed.
func selfSigned() *tls.Config {
	s := httptest.NewUnstartedServer(nil)
	s.StartTLS()
	defer s.Close()
	return &tls.Config{Certificates: s.TLS.Certificates, NextProtos: []string{"h2"}, MinVersion: tls.VersionTLS12}
}

// picker starts one, and the Service that leads to it.
func (r *gatewayRig) picker(p *testPicker, port int, secure *tls.Config) (stop func()) {
	r.t.Helper()
	name := p.name
	l, err := net.Listen("tcp", fmt.Sprintf("%s:%d", hostAddress, port))
	must(r.t, err)
	options := []grpc.ServerOption{grpc.MaxRecvMsgSize(64 << 20)}
	protocol := "kubernetes.io/h2c"
	if secure != nil {
		protocol = "http2"
		options = append(options, grpc.Creds(credentials.NewTLS(secure)))
	}
	g := grpc.NewServer(options...)
	extprocservice.RegisterExternalProcessorServer(g, p)
	go func() { _ = g.Serve(l) }()
	r.t.Cleanup(g.Stop)
	number, tcp := int32(port), corev1.ProtocolTCP
	ready := true
	r.apply(fmt.Sprintf(`{apiVersion: v1, kind: Service, metadata: {name: %s, namespace: models}, spec: {ports: [{port: 9002, targetPort: %d, appProtocol: %s}]}}`, name, port, protocol))
	slice := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "models", Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: name}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Port: &number, Protocol: &tcp, Name: new(string)}},
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{hostAddress}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}}}}
	must(r.t, r.client.Create(r.t.Context(), slice))
	return g.Stop
}

// Process speaks the endpoint-picker protocol.
func (p *testPicker) Process(s extprocservice.ExternalProcessor_ProcessServer) error {
	var headers *corev3.HeaderMap
	var body []byte
	duplex := true
	for {
		q, err := s.Recv()
		if err != nil {
			return nil
		}
		switch m := q.Request.(type) {
		case *extprocservice.ProcessingRequest_RequestHeaders:
			headers = m.RequestHeaders.Headers
			duplex = q.ProtocolConfig.GetRequestBodyMode() == extprocfilter.ProcessingMode_FULL_DUPLEX_STREAMED
			if !duplex && !m.RequestHeaders.EndOfStream {
				err = s.Send(&extprocservice.ProcessingResponse{Response: &extprocservice.ProcessingResponse_RequestHeaders{RequestHeaders: new(extprocservice.HeadersResponse)}})
			}
			if m.RequestHeaders.EndOfStream {
				err = s.Send(p.pick(headers, &extprocservice.ProcessingResponse{Response: &extprocservice.ProcessingResponse_RequestHeaders{}}))
			}
		case *extprocservice.ProcessingRequest_RequestBody:
			if body = append(body, m.RequestBody.Body...); !m.RequestBody.EndOfStream {
				continue
			}
			if wait := valueOf(headers, "x-wait"); wait != "" {
				d, _ := time.ParseDuration(wait)
				select {
				case <-time.After(d):
				case <-s.Context().Done():
					return nil
				}
			}
			if !duplex {
				a := p.pick(headers, new(extprocservice.ProcessingResponse))
				a.Response = &extprocservice.ProcessingResponse_RequestBody{RequestBody: &extprocservice.BodyResponse{Response: a.GetRequestHeaders().Response}}
				err = s.Send(a)
				break
			}
			if err = s.Send(p.pick(headers, &extprocservice.ProcessingResponse{Response: &extprocservice.ProcessingResponse_RequestHeaders{}})); err == nil {
				err = s.Send(&extprocservice.ProcessingResponse{Response: &extprocservice.ProcessingResponse_RequestBody{RequestBody: streamed(&extprocservice.HttpBody{Body: body, EndOfStream: true})}})
			}
		case *extprocservice.ProcessingRequest_ResponseHeaders:
			by := q.GetMetadataContext().GetFilterMetadata()["envoy.lb"].GetFields()["x-gateway-destination-endpoint-served"].GetStringValue()
			err = s.Send(&extprocservice.ProcessingResponse{Response: &extprocservice.ProcessingResponse_ResponseHeaders{
				ResponseHeaders: &extprocservice.HeadersResponse{Response: &extprocservice.CommonResponse{HeaderMutation: set("x-served", by, "x-picked-by", p.name)}}}})
		case *extprocservice.ProcessingRequest_ResponseBody:
			err = s.Send(&extprocservice.ProcessingResponse{Response: &extprocservice.ProcessingResponse_ResponseBody{ResponseBody: streamed(m.ResponseBody)}})
		case *extprocservice.ProcessingRequest_RequestTrailers:
			err = s.Send(&extprocservice.ProcessingResponse{Response: &extprocservice.ProcessingResponse_RequestTrailers{RequestTrailers: new(extprocservice.TrailersResponse)}})
		case *extprocservice.ProcessingRequest_ResponseTrailers:
			err = s.Send(&extprocservice.ProcessingResponse{Response: &extprocservice.ProcessingResponse_ResponseTrailers{ResponseTrailers: new(extprocservice.TrailersResponse)}})
		}
		if err != nil {
			return nil
		}
	}
}

// pick names the endpoint in both ways that the protocol has.
func (p *testPicker) pick(headers *corev3.HeaderMap, answer *extprocservice.ProcessingResponse) *extprocservice.ProcessingResponse {
	want := valueOf(headers, "x-want")
	if p.selects {
		answer.Response = &extprocservice.ProcessingResponse_RequestHeaders{RequestHeaders: &extprocservice.HeadersResponse{Response: &extprocservice.CommonResponse{
			ClearRouteCache: true, HeaderMutation: set("x-model", valueOf(headers, "x-ask"))}}}
		return answer
	}
	answer.Response = &extprocservice.ProcessingResponse_RequestHeaders{RequestHeaders: &extprocservice.HeadersResponse{Response: &extprocservice.CommonResponse{
		ClearRouteCache: true, HeaderMutation: set("x-gateway-destination-endpoint", want)}}}
	answer.DynamicMetadata = &structpb.Struct{Fields: map[string]*structpb.Value{"envoy.lb": structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{
		"x-gateway-destination-endpoint": structpb.NewStringValue(want)}})}}
	return answer
}

func streamed(b *extprocservice.HttpBody) *extprocservice.BodyResponse {
	return &extprocservice.BodyResponse{Response: &extprocservice.CommonResponse{BodyMutation: &extprocservice.BodyMutation{Mutation: &extprocservice.BodyMutation_StreamedResponse{
		StreamedResponse: &extprocservice.StreamedBodyResponse{Body: b.Body, EndOfStream: b.EndOfStream}}}}}
}

func set(pairs ...string) *extprocservice.HeaderMutation {
	m := new(extprocservice.HeaderMutation)
	for i := 0; i < len(pairs); i += 2 {
		m.SetHeaders = append(m.SetHeaders, &corev3.HeaderValueOption{Header: &corev3.HeaderValue{Key: pairs[i], RawValue: []byte(pairs[i+1])},
			AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD})
	}
	return m
}

func valueOf(headers *corev3.HeaderMap, name string) string {
	for _, h := range headers.GetHeaders() {
		if h.Key == name {
			return string(h.RawValue)
		}
	}
	return ""
}

// reply is one that the gateway gave.
type reply struct {
	status int
	header http.Header
	text   string
	served
}

// ask sends a request through Envoy.
func (r *gatewayRig) ask(path string, headers ...string) (*reply, error) {
	return r.send(path, `{"model":"m"}`, headers...)
}

func (r *gatewayRig) send(path, body string, headers ...string) (*reply, error) {
	if path[0] == '/' {
		path = "127.0.0.1:8888" + path
	}
	q, err := http.NewRequestWithContext(r.t.Context(), http.MethodPost, "http://"+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	for i := 0; i < len(headers); i += 2 {
		q.Header.Set(headers[i], headers[i+1])
		if headers[i] == "Host" {
			q.Host = headers[i+1]
		}
	}
	w, err := http.DefaultClient.Do(q)
	if err != nil {
		return nil, err
	}
	defer w.Body.Close()
	text, err := io.ReadAll(w.Body)
	a := &reply{status: w.StatusCode, header: w.Header, text: string(text)}
	_ = json.Unmarshal(text, &a.served)
	return a, err
}

// until asks until an answer is as it should be, which takes until Envoy has heard of what was written.
func (r *gatewayRig) until(t *testing.T, good func(*reply) bool, path string, headers ...string) *reply {
	t.Helper()
	var last string
	for deadline := time.Now().Add(90 * time.Second); time.Now().Before(deadline); {
		a, err := r.ask(path, headers...)
		if err == nil && good(a) {
			return a
		}
		last = fmt.Sprint(a, err)
		select {
		case <-t.Context().Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
	t.Fatalf("%s: the last answer was %s", path, last)
	return nil
}

func by(address string) func(*reply) bool {
	return func(a *reply) bool { return a.status == 200 && a.By == address }
}

func replies(code int) func(*reply) bool {
	return func(a *reply) bool { return a.status == code }
}

// key is an object's name in the namespace of the models.
func inModels(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: "models", Name: name}
}

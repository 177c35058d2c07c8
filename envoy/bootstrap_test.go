package envoy

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var rewrite = flag.Bool("rewrite", false, "write what is got into testdata, to be reviewed as a diff")

// basic is a gateway with one pool and nothing else asked for.
func basic() Options {
	return Options{Listen: "127.0.0.1:8080", Admin: "127.0.0.1:9901", Picker: Picker{Address: "127.0.0.1:9002"},
		Pools: []Pool{{Name: "llama", Model: "meta/llama", Endpoints: []Endpoint{{Host: "10.0.0.1:8000"}, {Host: "gpu2:8000"}, {Host: "10.0.0.3:8000", Drain: true}}}}}
}

// everything is a gateway with all that there is to ask for.
func everythingSet() Options {
	o := basic()
	o.Name, o.Listen = "lab", "[::]:443"
	o.Certificate = &Certificate{CertFile: "/tls/tls.crt", KeyFile: "/tls/tls.key", SDSFile: "/etc/envoy/certificate.yaml"}
	o.JWT = &JWT{Name: "idp", Issuer: "https://idp.example.com", JWKSURI: "https://idp.example.com:8443/keys", Audiences: []string{"inference"},
		Claims: []Claim{{Name: "scope", List: true, Values: []string{"infer", "admin"}}, {Name: "realm.role", Values: []string{"user"}}}}
	o.Picker = Picker{Address: "picker.example.com:9002", MessageTimeout: time.Second, QueueTimeout: time.Minute,
		TLS: &PickerTLS{CAFile: "/tls/ca.crt", CertFile: "/tls/client.crt", KeyFile: "/tls/client.key"}}
	o.MaxBodyBytes, o.Memory = 1<<20, 1<<30
	o.IdleTimeout, o.ConnectTimeout, o.AttemptTimeout, o.Retries = -1, time.Second, 30*time.Second, 2
	o.AccessLog, o.FullDuplex = "/dev/stdout", true
	o.Pools = append(o.Pools, Pool{Name: "qwen", Model: "no", H2C: true, RouteTimeout: time.Minute, Endpoints: []Endpoint{
		{Host: "[fd00::1]:8443", TLS: &TLS{ServerName: "fd00::1", CAFile: "/tls/gpu.crt"}}, {Host: "gpu4:8443", TLS: &TLS{ServerName: "gpu4"}},
		{Host: "gpu5:8443", TLS: &TLS{ServerName: "gpu5", InsecureSkipVerify: true}}}}, Pool{Name: "default backend", Endpoints: []Endpoint{{Host: "other:8000"}}})
	return o
}

func failingOpen() Options {
	o := basic()
	o.FailureMode, o.TrustHeaders, o.Retries = FailOpen, true, -1
	o.Pools[0].Endpoints[0].TLS = &TLS{ServerName: "gpu1"}
	return o
}

func dynamic() Options {
	o := basic()
	o.Dynamic, o.Admin = true, "/run/sluice/admin"
	return o
}

// What a bootstrap holds is reviewed as text, and the end-to-end tests have a real Envoy read the same files.
func TestBootstrap(t *testing.T) {
	f := func(name string, o Options) {
		t.Helper()
		for range 3 { // equal options make equal bytes
			b, err := Bootstrap(o)
			if err != nil {
				t.Errorf("%s: %v", name, err)
				return
			}
			got, err := YAML(b, About(o)...)
			if err != nil {
				t.Errorf("%s: %v", name, err)
				return
			}
			golden(t, filepath.Join("testdata", name+".yaml"), got)
		}
	}
	f("basic", basic())
	f("everything", everythingSet())
	f("failopen", failingOpen())
	f("dynamic", dynamic())
}

func TestSDSResource(t *testing.T) {
	r, err := SDSResource(*everythingSet().Certificate)
	if err != nil {
		t.Fatal(err)
	}
	got, err := YAML(r)
	if err != nil {
		t.Fatal(err)
	}
	golden(t, filepath.Join("testdata", "certificate.yaml"), got)
}

func golden(t *testing.T, path string, got []byte) {
	t.Helper()
	if *rewrite {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(string(got), "\n")); d != "" {
		t.Errorf("%s (-want +got; -rewrite takes it over):\n%s", path, d)
	}
}

// What no configuration can be made of is refused with its reason, all at once.
func TestRefused(t *testing.T) {
	f := func(change func(*Options), want ...string) {
		t.Helper()
		o := basic()
		change(&o)
		_, err := Bootstrap(o)
		if err == nil {
			t.Errorf("got a bootstrap, want an error with %q", want)
			return
		}
		for _, w := range want {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("got %v, want %q in it", err, w)
			}
		}
	}
	f(func(o *Options) { o.Listen, o.Picker.Address = "nowhere", "" }, `listen address "nowhere"`, `picker address ""`)
	f(func(o *Options) { o.Pools = nil }, "without pools")
	f(func(o *Options) { o.Pools = append(o.Pools, o.Pools[0]) }, `pool "llama" twice`)
	f(func(o *Options) { o.Pools[0].Model = "a\nb" }, "control character")
	f(func(o *Options) { o.Pools[0].Model = "a\xff" }, "not UTF-8")
	f(func(o *Options) { o.FailureMode = "Open" }, `failure mode "Open"`)
	two := func(o *Options) {
		o.FailureMode, o.FullDuplex = FailOpen, true
		o.Pools = append(o.Pools, Pool{Name: "b", Model: "b"})
	}
	f(two, "fail open with 2 pools", "bodies that pass through")
	f(func(o *Options) { o.FailureMode, o.Pools[0].Endpoints = FailOpen, o.Pools[0].Endpoints[2:] }, "no configured endpoint that takes requests")
}

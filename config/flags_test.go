package config

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestFromFlags(t *testing.T) {
	c, err := FromFlags([]string{
		"meta-llama/Llama-3.1-8B:free=10.0.0.1:8000,10.0.0.2",
		"q=4=[fd00::1]:9000", // E42, and a model name with '='
		"meta-llama/Llama-3.1-8B:free=https://gpu.example.com, https://gpu.example.com:8443",
		"META-LLAMA/Llama-3.1-8B:free=10.0.0.1:8000",
	}, KVEvents{})
	if err != nil {
		t.Fatal(err)
	}
	want := &Config{
		Source: "--endpoint", SelectModel: true, MaxBodyBytes: 268435456,
		Pools: []Pool{
			{Scheduler: "meta-llama-llama-3-1-8b-free", Model: "meta-llama/Llama-3.1-8B:free", AppProtocol: HTTP, Endpoints: []Endpoint{
				{Address: "10.0.0.1", Port: 8000}, {Address: "10.0.0.2", Port: 8000},
				{Address: "gpu.example.com", Port: 443, TLS: &TLS{}}, {Address: "gpu.example.com", Port: 8443, TLS: &TLS{}},
			}},
			{Scheduler: "q-4", Model: "q=4", AppProtocol: HTTP, Endpoints: []Endpoint{{Address: "fd00::1", Port: 9000}}},
			{Scheduler: "meta-llama-llama-3-1-8b-free-2", Model: "META-LLAMA/Llama-3.1-8B:free", AppProtocol: HTTP, Endpoints: []Endpoint{{Address: "10.0.0.1", Port: 8000}}},
		},
		Warnings: []Notice{{Value: "10.0.0.1:8000", Why: "is in the pools meta-llama-llama-3-1-8b-free and meta-llama-llama-3-1-8b-free-2, and none of them counts what the others send there"}},
	}
	if diff := cmp.Diff(want, c); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	var b bytes.Buffer
	if err := c.Explain(&b); err != nil {
		t.Fatal(err)
	}
	golden(t, "testdata/flags.want", b.String())
}

func TestFromFlagsFaults(t *testing.T) {
	f := func(want string, flags ...string) {
		t.Helper()
		_, err := FromFlags(flags, KVEvents{})
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), flagExample) {
			t.Errorf("%q: got %v, want %q and an example", flags, err, want)
		}
	}
	f("no endpoint is given")
	f(`--endpoint "10.0.0.1:8000": must be MODEL=HOST:PORT, and has no '='`, "10.0.0.1:8000")
	f(`--endpoint "=10.0.0.1": has no model before '='`, "=10.0.0.1")
	f("has an empty address", "m=")
	f("has an empty address", "m=a:1,,b:2")
	f(`address "fd00::1:8000" has an IPv6 address outside brackets`, "m=fd00::1:8000")
	f(`address "a/v1" must be HOST or HOST:PORT and nothing else`, "m=a/v1")
	f(`must be HOST or HOST:PORT, without ftp://`, "m=ftp://a")
	f("has '=' in an address", "m=https://a/v1?key=b")
	f(`has a:8000 for model "m" a second time`, "m=a", "m=A:8000")
	f("has a model name of 254 characters, at most 253 are allowed", strings.Repeat("é", 254)+"=a")
	f("2 faults", "a", "b") // all at once
}

// TestAddress holds what an address may look like; what it may not is in testdata/addresses.bad.yaml.
func TestAddress(t *testing.T) {
	f := func(in, host string, port int) {
		t.Helper()
		gotHost, gotPort, err := address(in)
		if err != nil || gotHost != host || gotPort != port {
			t.Errorf("%q: got %q, %d, %v, want %q, %d", in, gotHost, gotPort, err, host, port)
		}
	}
	f("10.0.0.1", "10.0.0.1", 0)
	f("10.0.0.1:65535", "10.0.0.1", 65535)
	f("Host.Example.com.", "host.example.com.", 0)
	f("vllm_1:8000", "vllm_1", 8000)
	f("[FD00:0:0::1]", "fd00::1", 0)
	f("[fe80::1%eth0]:80", "fe80::1%eth0", 80)
	f("[::ffff:10.0.0.1]:80", "10.0.0.1", 80)
	f("1.example", "1.example", 0)
}

func FuzzFromFlags(f *testing.F) {
	for _, s := range []string{"m=a:1,b:2", "a/b:c=d=[::1]:8", "m=https://a", "=", "日本=[fe80::1%é]:1", "m=a,a"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, value string) {
		c, err := FromFlags([]string{value}, KVEvents{})
		if err != nil {
			return
		}
		check(t, c)
		if got := c.Pools[0].Scheduler; len(got) > 63 || got == "" {
			t.Errorf("got pool name %q", got)
		}
		// The same model and the same endpoints, written in the one canonical way.
		var list []string
		for _, e := range c.Pools[0].Endpoints {
			text := e.HostPort()
			if e.TLS != nil {
				text = "https://" + text
			}
			list = append(list, text)
		}
		again, err := FromFlags([]string{c.Pools[0].Model + "=" + strings.Join(list, ",")}, KVEvents{})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(c, again); diff != "" {
			t.Errorf("-first +second:\n%s", diff)
		}
	})
}

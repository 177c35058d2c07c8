package kube

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/types"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	"sigs.k8s.io/yaml"

	"github.com/sluice-gateway/sluice/envoy"
	"github.com/sluice-gateway/sluice/translate"
)

// extensionCase is what Envoy Gateway sends, and what the cluster has.
type extensionCase struct {
	HTTPRoutes []gatewayv1.HTTPRoute `json:"httpRoutes"`
	// Pools are the backends that Envoy Gateway found, for each route by its name.
	Pools map[string][]json.RawMessage `json:"pools"`
	// Shown are configurations that there are certificates for.
	Shown     []string          `json:"shown"`
	Listeners []json.RawMessage `json:"listeners"`
	Tables    []json.RawMessage `json:"tables"`
	Clusters  []json.RawMessage `json:"clusters"`
}

// parse reads messages as Envoy's own YAML has them.
func parse[M proto.Message](t *testing.T, list []json.RawMessage, newOne func() M) []M {
	t.Helper()
	var out []M
	for _, text := range list {
		m := newOne()
		if err := protojson.Unmarshal(text, m); err != nil {
			t.Fatalf("%v in %s", err, text)
		}
		out = append(out, m)
	}
	return out
}

// translateCase does what two calls of Envoy Gateway's do.
func translateCase(t *testing.T, c *extensionCase) *translateAnswer {
	t.Helper()
	q := &translateRequest{Listeners: parse(t, c.Listeners, func() *listenerv3.Listener { return new(listenerv3.Listener) }),
		Routes:   parse(t, c.Tables, func() *routev3.RouteConfiguration { return new(routev3.RouteConfiguration) }),
		Clusters: parse(t, c.Clusters, func() *clusterv3.Cluster { return new(clusterv3.Cluster) })}
	for _, table := range q.Routes {
		for _, host := range table.VirtualHosts {
			for _, r := range host.Routes {
				noted := &routeRequest{Route: r, Context: new(routeContext)}
				for _, pool := range c.Pools[r.Name] {
					noted.Context.Resources = append(noted.Context.Resources, &extensionResource{JSON: pool})
				}
				if _, err := new(Extension).noteRoute(t.Context(), noted); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	tr := &translation{routes: make(map[types.NamespacedName]*gatewayv1.HTTPRoute), shown: make(map[string]*shownTo),
		source: endpointSource("dns:///sluice.sluice-system.svc:18000", []byte("authority"))}
	for i := range c.HTTPRoutes {
		tr.routes[nameOf(&c.HTTPRoutes[i])] = &c.HTTPRoutes[i]
	}
	for _, config := range c.Shown {
		tr.shown[config] = &shownTo{secret: "system/" + translate.EnvoySecret(strings.SplitN(config, "/", 2)[1]), cert: []byte("certificate"), key: []byte("key"), authority: []byte("pickers")}
	}
	a, err := tr.run(q)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// Golden pairs: what Envoy Gateway sends, routes without metadata among it (K24), and what Envoys are told instead. Listeners are shown where the case has its own.
func TestTranslation(t *testing.T) {
	base := readCase(t, "testdata/extension/base.yaml")
	files, err := filepath.Glob("testdata/extension/*.in.yaml")
	if err != nil || len(files) < 8 {
		t.Fatalf("got %d cases, %v", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".in.yaml"), func(t *testing.T) {
			c := readCase(t, file)
			own := c.Listeners != nil
			if !own {
				c.Listeners = base.Listeners
			}
			a := translateCase(t, c)
			var out strings.Builder
			for _, m := range messagesOf(a, own) {
				if v, ok := m.(valid); ok {
					if err := v.ValidateAll(); err != nil {
						t.Error(err)
					}
				}
				text, err := envoy.YAML(m, string(m.ProtoReflect().Descriptor().Name()))
				if err != nil {
					t.Fatal(err)
				}
				out.WriteString("---\n")
				out.Write(text)
			}
			golden := strings.Replace(file, ".in.", ".out.", 1)
			if *rewriteRights {
				if err := os.WriteFile(golden, []byte(out.String()), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), out.String()); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func readCase(t *testing.T, file string) *extensionCase {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	c := new(extensionCase)
	if err := yaml.UnmarshalStrict(text, c); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return c
}

func messagesOf(a *translateAnswer, listeners bool) (list []proto.Message) {
	if listeners {
		for _, m := range a.Listeners {
			list = append(list, m)
		}
	}
	for _, m := range a.Routes {
		list = append(list, m)
	}
	for _, m := range a.Clusters {
		list = append(list, m)
	}
	for _, m := range a.Secrets {
		list = append(list, m)
	}
	return list
}

// Messages go over gRPC as they came, with what is in them, and what nobody knows of them is passed over.
func TestExtensionMessagesTravel(t *testing.T) {
	codec := encoding.GetCodecV2("proto")
	sent := &translateRequest{Clusters: []*clusterv3.Cluster{{Name: "a"}, {Name: "b"}}, Routes: []*routev3.RouteConfiguration{{Name: "r"}}}
	text, err := codec.Marshal(sent)
	if err != nil {
		t.Fatal(err)
	}
	got := new(translateRequest)
	if err := codec.Unmarshal(text, got); err != nil {
		t.Fatal(err)
	}
	if len(got.Clusters) != 2 || got.Clusters[1].Name != "b" || len(got.Routes) != 1 || got.Routes[0].Name != "r" {
		t.Errorf("got %v", got)
	}
}

// A route's name says which rule it is of.
func TestRuleOf(t *testing.T) {
	f := func(name string, want ruleName, ok bool) {
		t.Helper()
		if got, is := ruleOf(name); got != want && ok || is != ok {
			t.Errorf("%s: got %v, %t, want %v, %t", name, got, is, want, ok)
		}
	}
	f("httproute/models/llama/rule/2/match/0/example_com", ruleName{types.NamespacedName{Namespace: "models", Name: "llama"}, 2}, true)
	f("httproute/models/llama/rule/0/match/-1/*", ruleName{types.NamespacedName{Namespace: "models", Name: "llama"}, 0}, true)
	f("grpcroute/models/llama/rule/0/match/0/x", ruleName{}, false)
	f("httproute/models/llama/rule/-1", ruleName{}, false)
	f("httproute/models/llama/rule/x/match", ruleName{}, false)
	f("httproute/models/llama", ruleName{}, false)
	f("", ruleName{}, false)
}

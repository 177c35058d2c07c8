package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gateway/sluice/kube"
)

// TestProgram: under the plugin's name the binary is the plugin, and says so.
func TestProgram(t *testing.T) {
	f := func(name, want string) {
		t.Helper()
		cmd := program(name)
		var out bytes.Buffer
		cmd.SetOut(&out)
		cmd.SetArgs([]string{"--help"})
		if err := cmd.Execute(); err != nil || !strings.Contains(out.String(), want) {
			t.Errorf("%s --help: got %v, %s, want %q in it", name, err, out.String(), want)
		}
	}
	f("/usr/local/bin/sluice", "sluice [command]")
	f("/usr/local/bin/kubectl-sluice", "kubectl sluice [command]")
	f("kubectl-sluice.exe", "kubectl sluice [command]")
	f("sluice-kubectl", "sluice [command]")
}

// TestUnknownCommand: a command that isn't there is a fault under each name, and not a page of help.
func TestUnknownCommand(t *testing.T) {
	f := func(want, name string, args ...string) {
		t.Helper()
		cmd := program(name)
		cmd.SetOut(new(bytes.Buffer))
		cmd.SetArgs(args)
		if err := cmd.Execute(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s %v: got %v, want %q", name, args, err, want)
		}
	}
	f(`unknown command "docter" for "sluice"`, "sluice", "docter")
	f(`unknown command "docter" for "sluice kubectl"`, "sluice", "kubectl", "docter")
	f(`unknown command "docter" for "kubectl sluice"`, "kubectl-sluice", "docter")
}

// TestPluginSaysWhatIsMissing: without a cluster, a name or a file, each command says what to do.
func TestPluginSaysWhatIsMissing(t *testing.T) {
	t.Setenv("KUBECONFIG", "nowhere.yaml")
	t.Setenv("HOME", t.TempDir())
	f := func(want string, args ...string) {
		t.Helper()
		cmd := program("kubectl-sluice")
		cmd.SetOut(new(bytes.Buffer))
		cmd.SetArgs(args)
		if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: got %v, want %q", args, err, want)
		}
	}
	f("--kubeconfig", "doctor")
	f("--kubeconfig", "top")
	f("not both", "top", "gateway", "-A")
	f("one name", "explain")
	f("`kubectl sluice top --help` lists the flags", "top", "--all")
	f("-f FILE", "check", "gateway.yaml")
}

// TestNotKept: of a request that no picker has, nothing is advised that pickers in a cluster can't be told.
func TestNotKept(t *testing.T) {
	want := `cannot find request "r" among the decisions that 2 pickers keep: the latest 256 of each, at most 20 a second, `
	if got := notKept("r", 2).Error(); !strings.HasPrefix(got, want) || strings.Contains(got, "--") {
		t.Errorf("got %q, want %q, and no flag", got, want)
	}
}

func TestWriteFindings(t *testing.T) {
	var out bytes.Buffer
	err := writeFindings(&out, []kube.Finding{{Level: kube.LevelOK, What: "controller", Text: "is there"}, {Level: kube.LevelFail, What: "Envoy Gateway", Text: "is not: install it"}})
	if err == nil || err.Error() != "1 of 2 findings keep gateways from working" {
		t.Errorf("got %v", err)
	}
	if diff := cmp.Diff("ok    controller: is there\nfail  Envoy Gateway: is not: install it\n", out.String()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// TestAddRows: of two pickers, what engines say is the first one's, and requests in flight are added up.
func TestAddRows(t *testing.T) {
	one, two := 1.0, 2.0
	at := make(map[[2]string]*endpointRow)
	pools := addRows(nil, &poolRows{Name: "llama", Endpoints: []endpointRow{{Name: "a", Running: &one, InFlight: 3}}}, at)
	pools = addRows(pools, &poolRows{Name: "llama", Endpoints: []endpointRow{{Name: "a", Running: &two, InFlight: 4}, {Name: "b", InFlight: 5}}}, at)
	pools = addRows(pools, &poolRows{Name: "llama", Endpoints: []endpointRow{{Name: "a", InFlight: 1}, {Name: "b", InFlight: 1}}}, at)
	got := make(map[string]int)
	for _, p := range pools {
		for _, e := range p.Endpoints {
			got[p.Name+" "+e.Name] = e.InFlight
		}
	}
	if diff := cmp.Diff(map[string]int{"llama a": 8, "llama b": 6}, got); diff != "" || *pools[0].Endpoints[0].Running != 1 {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// TestRows: a pool without endpoints has a line, unless another picker has one of it, and what is not ready says why.
func TestRows(t *testing.T) {
	at := make(map[[2]string]*endpointRow)
	var pools []poolRows
	for _, p := range []poolRows{
		{Name: "empty"}, {Name: "llama"},
		{Name: "empty"}, {Name: "llama", Endpoints: []endpointRow{{Name: "10.0.0.1:80", Pod: "llama-0", State: "not ready", Why: "refused"}, {Name: "10.0.0.2:80", State: "ready"}}},
	} {
		pools = addRows(pools, &p, at)
	}
	var got []string
	for _, p := range pools {
		for _, row := range p.rows([]string{"models", "gw"}) {
			got = append(got, strings.Join(row, " "))
		}
	}
	want := []string{"models gw empty - - - - - - - - no endpoint", "models gw llama llama-0 10.0.0.1:80 - - - - 0 - not ready: refused", "models gw llama - 10.0.0.2:80 - - - - 0 - ready"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// TestWriteTried: each object has its line, which says who it is and where it stands, and faults are counted in words.
func TestWriteTried(t *testing.T) {
	f := func(want, fault string, notes []string, tried ...kube.Tried) {
		t.Helper()
		var out bytes.Buffer
		err := writeTried(&out, "g.yaml", tried, notes)
		if (err == nil) != (fault == "") || err != nil && err.Error() != fault {
			t.Errorf("got %v, want %q", err, fault)
		}
		if diff := cmp.Diff(want, out.String()); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
	}
	good := kube.Tried{Place: "document 1", Kind: "Endpoints", Namespace: "models", Name: "rack"}
	bad := kube.Tried{Place: "document 2, items[1]", Kind: "GatewayPolicy", Name: "p", Faults: []string{"is odd"}, Notes: []string{"is old"}}
	f("", `cannot find a document in "g.yaml"`, nil)
	f("ok    Endpoints models/rack, document 1: would be taken\nnote  nobody may look\n", "", []string{"nobody may look"}, good)
	f("ok    Endpoints models/rack, document 1: would be taken\nfail  GatewayPolicy p, document 2, items[1]: is odd\nnote  GatewayPolicy p, document 2, items[1]: is old\n",
		`1 fault in "g.yaml"`, nil, good, bad)
	f("fail  Endpoints, document 1: has no name\n", `1 fault in "g.yaml"`, nil, kube.Tried{Place: "document 1", Kind: "Endpoints", Faults: []string{"has no name"}})
	f("fail  document 3: is a list\nfail  document 3: is a list\n", `2 faults in "g.yaml"`, nil, kube.Tried{Place: "document 3", Faults: []string{"is a list", "is a list"}})
}

// TestSettingsOf: a controller's arguments are its settings, those of other versions too.
func TestSettingsOf(t *testing.T) {
	s, err := settingsOf([]string{"control", "--image=i:1", "--system-namespace", "system", "--issuer=letters", "--later=1", "--extension"})
	if err != nil || s.Image != "i:1" || s.SystemNamespace != "system" || s.Issuer != "letters" || !s.Extension {
		t.Errorf("got %+v, %v", s, err)
	}
}

package fleet

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// whoServes maps every name to "pool" or "pool/adapter".
func whoServes(f *Fleet) map[string]string {
	got := make(map[string]string)
	for _, name := range f.Names() {
		target, ok := f.Lookup(name)
		if !ok {
			continue
		}
		got[name] = target.Pool.Name()
		if target.Adapter != "" {
			got[name] += "/" + target.Adapter
		}
	}
	return got
}

func TestZeroFleet(t *testing.T) {
	var f Fleet
	if _, ok := f.Lookup("m"); ok || f.Fallback() != nil || f.Pools() != nil || f.Names() != nil {
		t.Error("an empty fleet knows something")
	}
}

// Q12, L06: a name goes to the pool configured for it as a model, else as an adapter, else to where it was found first.
func TestLookupPrecedence(t *testing.T) {
	var f Fleet
	a := PoolConfig{Name: "pa", Model: "base", Adapters: []string{"tuned", "other"}, Endpoints: named(1)}
	b := PoolConfig{Name: "pb", Model: "other", Adapters: []string{"tuned"}, Endpoints: []Endpoint{{Name: "b:1"}}}
	c := PoolConfig{Name: "pc", Endpoints: []Endpoint{{Name: "c:1"}}}
	f.Apply([]PoolConfig{a, b, c}, "pc")
	want := map[string]string{"base": "pa", "tuned": "pa/tuned", "other": "pb"}
	if diff := cmp.Diff(want, whoServes(&f)); diff != "" {
		t.Error(diff)
	}
	pools := f.Pools()
	pools[2].ObserveModels("c:1", "vllm", []Model{{ID: "found"}, {ID: "found-lora", Parent: "found"}, {ID: "base"}, {ID: "both"}})
	pools[1].ObserveModels("b:1", "vllm", []Model{{ID: "other"}, {ID: "both", Parent: "other"}})
	want["found"], want["found-lora"], want["both"] = "pc", "pc/found-lora", "pb/both"
	if diff := cmp.Diff(want, whoServes(&f)); diff != "" {
		t.Errorf("after asking: %s", diff)
	}
	pools[2].ObserveModels("c:1", "vllm", []Model{{ID: "found"}})
	delete(want, "found-lora")
	if diff := cmp.Diff(want, whoServes(&f)); diff != "" {
		t.Errorf("an adapter was unloaded: %s", diff)
	}
	pools[2].SetEndpoints(nil)
	delete(want, "found")
	if diff := cmp.Diff(want, whoServes(&f)); diff != "" {
		t.Errorf("the endpoint left that listed it: %s", diff)
	}
	if f.Fallback() != pools[2] {
		t.Error("the fallback is not the pool named")
	}
	if _, ok := f.Lookup(""); ok {
		t.Error("the empty name is served")
	}
	if f.Apply([]PoolConfig{a}, "pc"); f.Fallback() != nil {
		t.Error("the fallback is a pool that is gone")
	}
}

// A reload keeps what is known of pools and endpoints that stay, and lets requests of those that go end in peace.
func TestReloadKeepsBookkeeping(t *testing.T) {
	var f Fleet
	a := PoolConfig{Name: "a", Model: "m", Endpoints: named(2)}
	b := PoolConfig{Name: "b", Model: "n", Endpoints: []Endpoint{{Name: "b:1"}}}
	f.Apply([]PoolConfig{a, b}, "")
	pa, pb := f.Pools()[0], f.Pools()[1]
	observeAll(pa, 0)
	observeAll(pb, 0)
	kept := pick(t, pa, 0, prompt(1, 25_600))
	leaving := pick(t, pb, 0, prompt(1, 25_600))
	streaming := pick(t, pb, 0, prompt(2, 25_600))
	streaming.FirstByte(sec(.1))

	a.StaleAfter, a.Endpoints, a.Model = sec(9), named(3), "renamed"
	f.Apply([]PoolConfig{{Name: "c", Model: "m"}, a}, "")
	if got := f.Pools(); len(got) != 2 || got[1] != pa {
		t.Fatalf("got pools %v, want the old one second", got)
	}
	if diff := cmp.Diff(map[string]string{"m": "c", "renamed": "a"}, whoServes(&f)); diff != "" {
		t.Error(diff)
	}
	blocks := 0
	for _, s := range pa.Status(sec(1))[:2] {
		if blocks += s.PrefixUnits; s.State != "ready" {
			t.Errorf("%s: %s (%s) after a reload, want ready", s.Endpoint.Name, s.State, s.Why)
		}
	}
	if pa.InFlight() != 1 || blocks != 100 || pa.Config().StaleAfter != sec(9) || pa.Config().StallAfter != DefaultStallAfter {
		t.Errorf("in flight %d, %d blocks, stale after %v, want 1, 100, 9s", pa.InFlight(), blocks, pa.Config().StaleAfter)
	}
	if told(kept) || !told(leaving) || told(streaming) {
		t.Errorf("told to move: at an endpoint that stays %v, without a byte %v, streaming %v; want only the second", told(kept), told(leaving), told(streaming))
	}
	kept.Done(sec(2), Outcome{})
	leaving.Done(sec(2), Outcome{Ending: Moved})
	streaming.Done(sec(2), Outcome{OutputTokens: 5})
	empty(t, pa)
	empty(t, pb)
	if l, _ := pb.Pick(sec(2), short()); l != nil {
		t.Errorf("a pool that is gone serves from %s", l.Endpoint.Name)
	}
}

// Q03, Q06: what the pool offers is the union of what its endpoints list, base models first, each as the engine wrote
// it.
func TestModelsAreTheUnion(t *testing.T) {
	p := newPool(t, 3)
	p.ObserveModels("e0:8000", "vllm", []Model{{ID: "m", Raw: []byte(`{"id":"m","max_model_len":4096}`)}, {ID: "z", Parent: "m"}})
	p.ObserveModels("e1:8000", "vllm", []Model{{ID: "b", Parent: "m"}, {ID: "m"}})
	p.ObserveModels("e9:8000", "vllm", []Model{{ID: "stranger"}})
	want := []Model{{ID: "m", Raw: []byte(`{"id":"m","max_model_len":4096}`)}, {ID: "b", Parent: "m"}, {ID: "z", Parent: "m"}}
	if diff := cmp.Diff(want, p.Models()); diff != "" {
		t.Error(diff)
	}
	p.SetEndpoints(named(3)[1:])
	if diff := cmp.Diff([]Model{{ID: "m"}, {ID: "b", Parent: "m"}}, p.Models()); diff != "" {
		t.Errorf("e0 is gone: %s", diff)
	}
}

// O06: a name is the same endpoint twice only once, and row order is the configured one.
func TestEndpointsAreUnique(t *testing.T) {
	p := NewPool("m")
	p.Apply(PoolConfig{Name: "m", Endpoints: append(named(2), Endpoint{Name: "e0:8000", Host: "other"})})
	got := p.Endpoints()
	if len(got) != 2 || got[0].Host != "" || got[1].Name != "e1:8000" {
		t.Errorf("got %v, want e0 as first given, and e1", got)
	}
	audit(t, p)
}

func TestGPULabel(t *testing.T) {
	for want, labels := range map[string]map[string]string{
		"":     {"zone": "a"},
		"H100": {LabelGPU: "H100", LabelNvidiaGPU: "NVIDIA-H100"},
		"A10G": {LabelGPU: "", LabelNvidiaGPU: "A10G"},
	} {
		if got := (&Endpoint{Labels: labels}).GPU(); got != want {
			t.Errorf("%v: got %q, want %q", labels, got, want)
		}
	}
}

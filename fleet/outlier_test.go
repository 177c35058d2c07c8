package fleet

import "testing"

// An endpoint that is slower than its kind for long is reported, and keeps its kind's rates.
func TestOutlierIsReported(t *testing.T) {
	p := NewPool("m")
	eps := named(4)
	for i := range eps {
		eps[i].Labels = map[string]string{LabelGPU: "H100"}
	}
	p.Apply(PoolConfig{Name: "m", Endpoints: eps})
	observeAll(p, 0)
	now := 0.
	for k := range 60 {
		for i, e := range eps {
			now = teachPrefill(t, p, e.Name, now, 1, []float64{.1, .1, .1, .25}[i])
			observeAll(p, now)
		}
		if s := p.Status(sec(now)); k < 10 && s[3].Slower != 0 {
			t.Fatalf("reported after %d prompts", k)
		}
	}
	s := p.Status(sec(now))
	for i := range eps {
		if reported := s[i].Slower > 0; reported != (i == 3) || s[i].Rate != s[0].Rate {
			t.Errorf("%s: %v times slower, rate %+v", s[i].Endpoint.Name, s[i].Slower, s[i].Rate)
		}
	}
	if got := s[3].Slower; got < 2.3 || got > 2.7 {
		t.Errorf("got %v times slower, want 2.5", got)
	}
}

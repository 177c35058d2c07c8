package fleet

import "testing"

// Whether anyone else sends to the endpoints follows from what engines have and we did not send.
func TestOthersAreNoticed(t *testing.T) {
	run := func(others float64) float32 {
		p := newPool(t, 2)
		var ours [2]float64
		name := map[string]int{p.rows[0].Name: 0, p.rows[1].Name: 1}
		for i := range 8 {
			ours[name[pick(t, p, float64(i)/10, prompt(i, 4000)).Endpoint.Name]]++
		}
		for i := range 100 {
			for k, ep := range p.rows {
				p.Observe(sec(1+float64(i)), sec(1+float64(i)), ep.Name, working(ours[k]*(1+others), 400_000), nil)
			}
		}
		return p.view.Alone
	}
	for others, want := range map[float64]float32{0: 1, .05: 1, .5: .2, 1: 0, 2: 0} {
		got := run(others)
		if exact := want == 0 || want == 1; exact && got != want || !exact && (got <= 0 || got >= 1) {
			t.Errorf("%v requests of others for each of ours: alone is %v, want %v", others, got, want)
		}
	}
	if p := newPool(t, 2); p.view.Alone != 0 {
		t.Errorf("before there is evidence: alone is %v, want 0", p.view.Alone)
	}
}

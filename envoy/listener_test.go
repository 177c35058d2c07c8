package envoy

import (
	"regexp"
	"testing"

	"github.com/sluice-gateway/sluice/front"
)

// Of the names that begin with x-gateway-, exactly the one that selects the model is kept.
func TestAllBut(t *testing.T) {
	matches := func(name string) bool {
		for _, m := range allBut(front.WireModel) {
			if regexp.MustCompile("^(?:" + m.GetSafeRegex().GetRegex() + ")$").MatchString(name) {
				return true
			}
		}
		return false
	}
	f := func(name string, want bool) {
		t.Helper()
		if got := matches(name); got != want {
			t.Errorf("%s is removed: got %t, want %t", name, got, want)
		}
	}
	f(front.WireModel, false)
	f("content-type", false)
	f("x-gateway", false)
	for i := len("x-gateway-"); i < len(front.WireModel); i++ {
		f(front.WireModel[:i], true)
		f(front.WireModel[:i]+"0", true)
		f(front.WireModel[:i]+"0"+front.WireModel[i:], true)
	}
	for _, name := range []string{front.WireModel + "s", front.WireModel + "-x", front.WireBaseModel, front.WireDestination, front.WireServed, front.WireReason,
		"x-gateway-inference-objective", "x-gateway-inference-fairness-id", "x-gateway-destination-endpoint-subset", "x-gateway-model", "x-gateway-model-names"} {
		f(name, true)
	}
}

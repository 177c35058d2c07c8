package envoy

import (
	"regexp"
	"testing"
)

// Of the names that begin with x-gateway-, exactly the one that selects the model is kept.
func TestAllBut(t *testing.T) {
	matches := func(name string) bool {
		for _, m := range allBut(headerModel) {
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
	f(headerModel, false)
	f("content-type", false)
	f("x-gateway", false)
	for i := len("x-gateway-"); i < len(headerModel); i++ {
		f(headerModel[:i], true)
		f(headerModel[:i]+"0", true)
		f(headerModel[:i]+"0"+headerModel[i:], true)
	}
	for _, name := range []string{headerModel + "s", headerModel + "-x", headerBaseModel, headerDestination, headerServed, headerReason,
		"x-gateway-inference-objective", "x-gateway-inference-fairness-id", "x-gateway-destination-endpoint-subset", "x-gateway-model", "x-gateway-model-names"} {
		f(name, true)
	}
}

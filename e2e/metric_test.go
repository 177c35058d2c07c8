//go:build (doors || vllm) && unix

package e2e

import (
	"bufio"
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// metric sums the samples of one of the gateway's own metrics.
func (g *gateway) metric(t *testing.T, name string) (sum float64) {
	t.Helper()
	answer, err := http.Get(g.admin + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	for lines := bufio.NewScanner(answer.Body); lines.Scan(); {
		series, value, _ := strings.Cut(lines.Text(), " ")
		if bare, _, _ := strings.Cut(series, "{"); bare == name {
			var x float64
			if _, err := fmt.Sscan(value, &x); err != nil {
				t.Fatal(err)
			}
			sum += x
		}
	}
	return sum
}

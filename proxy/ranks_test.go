package proxy

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/fleet"
	"github.com/sluice-gateway/sluice/front"
)

// D01: ranks that share a port are endpoints, and a header steers to the one that was picked, whatever the client says.
// vLLM counts them from 0 at each address, SGLang over all addresses (D03).
func TestRankHeader(t *testing.T) {
	for _, engine := range []string{"vllm", "sglang", ""} {
		r := newRig(t, Options{}, func(w http.ResponseWriter, q *http.Request) {
			fmt.Fprintf(w, `{"rank":%q}`, q.Header[front.HeaderRank])
		})
		ask := func(rank string) answer {
			q := r.request(http.MethodPost, chatPath, `{"model":"m"}`)
			q.Header.Set("X-Data-Parallel-Rank", rank)
			return r.do(q)
		}
		address := r.engines[0]
		var eps []fleet.Endpoint
		for i := range 3 {
			eps = append(eps, fleet.Endpoint{Name: address + "@" + strconv.Itoa(4+i), Host: address, Engine: engine, Ranks: 3, FirstRank: 4, Rank: 4 + i})
		}
		r.applyEndpoints(eps)
		var got []string
		for range 3 {
			a := ask("9")
			served := a.header.Get(front.HeaderServed)
			got = append(got, fmt.Sprintf("%s %s", strings.TrimPrefix(served, address), a.body))
		}
		want := []string{`@4 {"rank":["0"]}`, `@5 {"rank":["1"]}`, `@6 {"rank":["2"]}`}
		if engine == "sglang" {
			want = []string{`@4 {"rank":["4"]}`, `@5 {"rank":["5"]}`, `@6 {"rank":["6"]}`}
		}
		if !slices.Equal(got, want) {
			t.Errorf("engine %q: got %q, want %q", engine, got, want)
		}
		// Where ranks are the engine's own matter, a client has no say in them either.
		r.apply([]string{address})
		if a := ask("1"); a.body != `{"rank":[]}` {
			t.Errorf("got %s without ranks, want no header", a.body)
		}
	}
}

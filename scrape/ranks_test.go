package scrape

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-gateway/sluice/fleet"
)

// ranks are the endpoints of an address with data-parallel ranks.
func ranks(address string, first, n int) []fleet.Endpoint {
	var eps []fleet.Endpoint
	for r := first; r < first+n; r++ {
		e := ep(address)
		e.Name, e.Ranks, e.FirstRank, e.Rank = fmt.Sprintf("%s@%d", address, r), n, first, r
		eps = append(eps, e)
	}
	return eps
}

// M12, D06: each rank reads its own series of the one page that its address has, which is fetched once for all.
func TestRanksShareAPage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var page strings.Builder
		for r := 4; r < 8; r++ {
			fmt.Fprintf(&page, "vllm:num_requests_waiting{engine=\"%d\",model_name=\"m\"} %d\n", r, r)
			fmt.Fprintf(&page, "vllm:num_requests_running{engine=\"%d\",model_name=\"m\"} 1\n", r)
			fmt.Fprintf(&page, "vllm:kv_cache_usage_perc{engine=\"%d\",model_name=\"m\"} 0.%d\n", r, r)
		}
		page.WriteString("vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"100\"} 1\n")
		e := newEngine(page.String(), vllmModels)
		w := run(t, ranks("10.0.0.1:80", 4, 4), func(w *world, o *Options) { w.serve(t, "10.0.0.1:80", e) })
		all := w.after(1100 * time.Millisecond)
		for r := 4; r < 8; r++ {
			s := all[fmt.Sprintf("10.0.0.1:80@%d", r)]
			if s.State != "ready" || s.Reading.Waiting != float64(r) || math.Abs(s.Reading.KVUse-float64(r)/10) > 1e-9 || s.Reading.KVTokens != 1600 {
				t.Errorf("rank %d: got %s %s, reading %+v, want its own", r, s.State, s.Why, s.Reading)
			}
		}
		if n := e.scrapes.Load(); n < 5 || n > 6 {
			t.Errorf("got %d scrapes in 1.1 s, want one each 200 ms for all ranks", n)
		}
		// D04: a rank that is taken away takes nothing from the others.
		w.apply(ranks("10.0.0.1:80", 4, 2)...)
		if all = w.after(time.Second); len(all) != 2 || all["10.0.0.1:80@5"].Reading.Waiting != 5 || all["10.0.0.1:80@5"].State != "ready" {
			t.Errorf("got %+v, want the ranks 4 and 5", all)
		}
	})
}

// D05: an address where nobody listens is said to be one, for each of its ranks.
func TestRanksThatRefuse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := run(t, ranks("10.0.0.1:80", 0, 2), func(*world, *Options) {})
		for name, s := range w.after(time.Second) {
			if s.State != "not ready" || !strings.Contains(s.Why, "no process listens there") {
				t.Errorf("%s: got %s, %q, want that nobody listens", name, s.State, s.Why)
			}
		}
	})
}

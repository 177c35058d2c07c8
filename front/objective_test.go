package front

import (
	"bytes"
	"context"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/route"
)

// An objective counts for its own pool, by its newer header before the older one, and only from clients that are trusted. Who
// names one that isn't configured has none, and no text of a client's own gets into the log or a record.
func TestObjectives(t *testing.T) {
	list := []Objective{{Name: "chat", Pool: "a", Priority: 100}, {Name: "batch", Pool: "a", Priority: -10}, {Name: "chat", Pool: "b", Priority: 1}}
	for _, tt := range []struct {
		model     string
		trust     bool
		header    http.Header
		objective string
		priority  int64
	}{
		{"a", true, http.Header{"X-Llm-D-Inference-Objective": {"chat"}}, "chat", 100},
		{"b", true, http.Header{"X-Llm-D-Inference-Objective": {"chat"}}, "chat", 1},
		{"a", true, http.Header{"X-Gateway-Inference-Objective": {"batch"}}, "batch", -10},
		{"a", true, http.Header{"X-Gateway-Inference-Objective": {"chat"}, "X-Llm-D-Inference-Objective": {"batch"}}, "batch", -10},
		{"b", true, http.Header{"X-Llm-D-Inference-Objective": {"batch"}}, "", 0},
		{"a", true, http.Header{"X-Llm-D-Inference-Objective": {"nobody's"}}, "", 0},
		{"a", true, nil, "", 0},
		{"a", false, http.Header{"X-Llm-D-Inference-Objective": {"chat"}}, "", 0},
		{"a", false, http.Header{"X-Gateway-Inference-Objective": {"chat"}}, "", 0},
	} {
		var records []*route.Record
		var text bytes.Buffer
		d := twoPools(t, Options{SelectModel: true, TrustHeaders: tt.trust, Objectives: list,
			Record: func(r *route.Record) { records = append(records, r) }, Sample: func(string) bool { return true }})
		d.log = slog.New(slog.NewTextHandler(&text, &slog.HandlerOptions{Level: slog.LevelDebug}))
		_, r := ask(t, d, tt.header, `{"model":"`+tt.model+`","prompt":"p"}`)
		r.End(context.Background())
		if r.Objective != tt.objective || r.Priority != tt.priority {
			t.Errorf("%+v: got %q, %d", tt, r.Objective, r.Priority)
		}
		if len(records) != 1 || records[0].Objective != tt.objective || records[0].Priority != tt.priority {
			t.Errorf("%+v: got the records %+v", tt, records)
		}
		if logged := strings.Contains(text.String(), "objective="+tt.objective+" priority="); logged != (tt.objective != "") {
			t.Errorf("%+v: got the log %s", tt, text.String())
		}
		if strings.Contains(text.String(), "nobody's") {
			t.Errorf("%+v: got a client's own text in the log: %s", tt, text.String())
		}
	}
}

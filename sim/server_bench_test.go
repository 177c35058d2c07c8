package sim

import (
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// cpu is the processor time of the process, user's and system's.
func cpu(b *testing.B) time.Duration {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		b.Fatal(err)
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// discard is a client that takes everything at once.
type discard struct {
	header http.Header
	writes int
}

func (d *discard) Header() http.Header         { return d.header }
func (d *discard) WriteHeader(int)             {}
func (d *discard) Write(p []byte) (int, error) { d.writes++; return len(p), nil }
func (d *discard) Flush()                      {}

// BenchmarkStreamedToken is what a streamed token costs without the network: step, wake-up, event. The metric to read is cpu-ns/token; the time is the engine's.
func BenchmarkStreamedToken(b *testing.B) {
	const streams = 128
	s, err := NewServer(ServerOptions{Engine: EngineConfig{Profile: profile(b, "l8-h100")}, Model: "m"})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	tokens := max(b.N/streams, 2)
	before := cpu(b)
	var wait sync.WaitGroup
	writes := make([]int, streams)
	for i := range streams {
		wait.Go(func() {
			w := &discard{header: make(http.Header)}
			s.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/v1/chat/completions", strings.NewReader(
				`{"messages":[{"role":"user","content":"hello `+strconv.Itoa(i)+`"}],"stream":true,"ignore_eos":true,"max_tokens":`+strconv.Itoa(tokens)+`}`)))
			writes[i] = w.writes
		})
	}
	wait.Wait()
	all := 0
	for _, n := range writes {
		all += n
	}
	b.ReportMetric(float64(cpu(b)-before)/float64(streams*tokens), "cpu-ns/token")
	b.ReportMetric(float64(all)/float64(streams*tokens), "writes/token")
}

func BenchmarkMetricsPage(b *testing.B) {
	s, err := NewServer(ServerOptions{Engine: EngineConfig{Profile: profile(b, "l8-h100")}, Model: "m", Adapters: []string{"a"}})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	r := httptest.NewRequest(http.MethodGet, "/metrics", nil)
	for b.Loop() {
		s.ServeHTTP(&discard{header: make(http.Header)}, r)
	}
}

// BenchmarkPrompt is what a request costs before the engine has it, by the size of its prompt in bytes.
func BenchmarkPrompt(b *testing.B) {
	for _, size := range []int{1 << 10, 32 << 10} {
		b.Run(strconv.Itoa(size), func(b *testing.B) {
			s, err := NewServer(ServerOptions{Engine: EngineConfig{Profile: profile(b, "l8-h100")}, Model: "m"})
			if err != nil {
				b.Fatal(err)
			}
			defer s.Close()
			body := `{"messages":[{"role":"user","content":"` + strings.Repeat("some words of a prompt ", size/23) + `"}],"max_tokens":100000}`
			b.SetBytes(int64(size))
			for b.Loop() { // the limit is refused after all is read and cut into tokens
				s.ServeHTTP(&discard{header: make(http.Header)}, httptest.NewRequest(http.MethodPost, "/v1/chat/completions", strings.NewReader(body)))
			}
		})
	}
}

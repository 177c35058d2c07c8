//go:build unix

package proxy

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"os"
	"os/exec"
	"runtime/debug"
	"runtime/pprof"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-gateway/sluice/fleet"
	"github.com/sluice-gateway/sluice/front"
)

// BenchmarkProxy measures the gateway as a process: engines and gateway run in processes of their own, which are this
// test binary again, and the benchmark's own process is the client. cpu-µs/req is the user and system time of the
// gateway's process; of-reverse is the throughput in relation to a tuned httputil.ReverseProxy in the same run.
const roleVariable = "SLUICE_BENCH_ROLE"

// profileVariable begins the names of files for CPU profiles of the gateway's process and the yardstick's; ".sluice"
// and ".reverse" follow.
const profileVariable = "SLUICE_BENCH_PROFILE"

func TestMain(m *testing.M) {
	role := os.Getenv(roleVariable)
	if role == "" {
		os.Exit(m.Run())
	}
	if err := play(role, os.Args[len(os.Args)-1]); err != nil {
		fmt.Fprintln(os.Stderr, role+":", err)
		os.Exit(1)
	}
}

const (
	benchEngines = 4
	// gcPercent is what serve sets, for both gateways alike.
	gcPercent = 400
)

// play is what a child process does until its standard input ends.
func play(role, engines string) error {
	var lines []string
	serve := func(serve func(net.Listener)) error {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		lines = append(lines, l.Addr().String())
		go serve(l)
		return nil
	}
	debug.SetGCPercent(gcPercent) // both gateways run as serve runs
	var err error
	switch role {
	case "engines":
		for range benchEngines {
			err = errors.Join(err, serve(bareEngine))
		}
	case "reverse":
		err = serve(serveHandler(reverseProxy(strings.Split(engines, ","))))
	case "sluice":
		err = serve(serveHandler(benchGateway(strings.Split(engines, ","))))
	}
	if err != nil {
		return err
	}
	if path := os.Getenv(profileVariable); path != "" && role != "engines" {
		f, err := os.Create(path + "." + role)
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }()
		if err := pprof.StartCPUProfile(f); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	fmt.Println(strings.Join(lines, ","))
	in := bufio.NewReader(os.Stdin)
	for {
		if _, err := in.ReadString('\n'); err != nil {
			return nil
		}
		var u syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
			return err
		}
		fmt.Println(u.Utime.Nano() + u.Stime.Nano())
	}
}

func serveHandler(h http.Handler) func(net.Listener) {
	return func(l net.Listener) { _ = (&http.Server{Handler: h}).Serve(l) }
}

// benchGateway is the gateway with its default profile, as a user runs it.
func benchGateway(addresses []string) http.Handler {
	f := new(fleet.Fleet)
	var eps []fleet.Endpoint
	for _, a := range addresses {
		eps = append(eps, fleet.Endpoint{Name: a, Host: a})
	}
	f.Apply([]fleet.PoolConfig{{Name: "pool", Model: "m", Endpoints: eps}}, "")
	pool := f.Pools()[0]
	for _, e := range eps {
		r := fleet.UnknownReading()
		r.Waiting, r.Running, r.KVUse, r.KVTokens = 0, 1, .2, 400_000
		pool.Observe(0, 0, e.Name, r, nil)
	}
	start := time.Now()
	return New(f, Options{Options: front.Options{SelectModel: true}}, prometheus.NewRegistry(), func() time.Duration { return time.Since(start) }, slog.New(slog.DiscardHandler))
}

// reverseProxy is the yardstick: the standard library's, with pooled body and copy buffers, large connection buffers
// and no picking.
func reverseProxy(addresses []string) http.Handler {
	var turn atomic.Uint64
	bodies, pieces := &bytePool{size: 1 << 20}, &bytePool{size: 32 << 10}
	rp := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host = "http", addresses[turn.Add(1)%uint64(len(addresses))]
		},
		Transport: &http.Transport{MaxIdleConnsPerHost: idleConnsPerHost, WriteBufferSize: 64 << 10, ReadBufferSize: 64 << 10,
			DisableCompression: true, IdleConnTimeout: idleConnTimeout},
		BufferPool: pieces,
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		buf := bodies.Get()
		defer bodies.Put(buf)
		if _, err := io.ReadFull(r.Body, buf[:r.ContentLength]); err != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(buf[:r.ContentLength]))
		rp.ServeHTTP(w, r)
	})
}

type bytePool struct {
	size int
	p    sync.Pool
}

func (p *bytePool) Get() []byte {
	if b, ok := p.p.Get().(*[]byte); ok {
		return *b
	}
	return make([]byte, p.size)
}

func (p *bytePool) Put(b []byte) { p.p.Put(&b) }

const streamChunks = 200

// bareEngine reads requests and answers them with as little work as can be; requests that say so get a stream.
func bareEngine(l net.Listener) {
	chunk := `data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":" word"},"logprobs":null,"finish_reason":null}]}` + "\n\n"
	plain := `{"id":"chatcmpl-1","object":"chat.completion","model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"` + strings.Repeat("word ", 100) + `"}}],"usage":{"prompt_tokens":100,"completion_tokens":100}}`
	answer := []byte("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: " + strconv.Itoa(len(plain)) + "\r\n\r\n" + plain)
	head := []byte("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
	event := []byte(fmt.Sprintf("%x\r\n%s\r\n", len(chunk), chunk))
	serve := func(c net.Conn) {
		r := bufio.NewReaderSize(c, 64<<10)
		for {
			m, err := readMessage(r)
			if err != nil {
				_ = c.Close()
				return
			}
			if !m.stream {
				_, _ = c.Write(answer)
				continue
			}
			_, _ = c.Write(head)
			for range streamChunks {
				_, _ = c.Write(event)
			}
			_, _ = io.WriteString(c, "0\r\n\r\n")
		}
	}
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go serve(c)
	}
}

// message is what both bare ends need to know of what they read.
type message struct {
	stream bool
	bad    bool
}

// readMessage reads one request or answer to its end.
func readMessage(r *bufio.Reader) (m message, err error) {
	length, chunked := 0, false
	for n := 0; ; n++ {
		line, err := r.ReadSlice('\n')
		if err != nil {
			return m, err
		}
		if n == 0 {
			m.bad = bytes.HasPrefix(line, []byte("HTTP/")) && !bytes.HasPrefix(line[8:], []byte(" 200"))
		}
		if len(line) <= 2 {
			break
		}
		if name, value, _ := bytes.Cut(line, []byte(": ")); len(name) > 5 {
			value = bytes.TrimSpace(value)
			switch strings.ToLower(string(name)) {
			case "content-length":
				length, _ = strconv.Atoi(string(value))
			case "transfer-encoding":
				chunked = true
			case "x-stream":
				m.stream = true
			}
		}
	}
	if chunked {
		return m, skipChunks(r)
	}
	_, err = r.Discard(length)
	return m, err
}

func skipChunks(r *bufio.Reader) error {
	for {
		line, err := r.ReadSlice('\n')
		if err != nil {
			return err
		}
		n, err := strconv.ParseInt(string(bytes.TrimSpace(line)), 16, 32)
		if err != nil {
			return err
		}
		if _, err := r.Discard(int(n) + 2); err != nil || n == 0 {
			return err
		}
	}
}

// child is a process of this benchmark.
type child struct {
	in      io.WriteCloser
	out     *bufio.Reader
	address string
}

func startChild(b *testing.B, role, engines string) *child {
	b.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^$", engines)
	cmd.Env = append(os.Environ(), roleVariable+"="+role)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait()
		cancel()
	})
	c := &child{in: in, out: bufio.NewReader(out)}
	c.address = c.line(b)
	return c
}

func (c *child) line(b *testing.B) string {
	b.Helper()
	s, err := c.out.ReadString('\n')
	if err != nil {
		b.Fatalf("cannot read from a child process: %v", err)
	}
	return strings.TrimSpace(s)
}

// cpu is the processor time of the process so far.
func (c *child) cpu(b *testing.B) time.Duration {
	b.Helper()
	_, _ = io.WriteString(c.in, "\n")
	n, err := strconv.ParseInt(c.line(b), 10, 64)
	if err != nil {
		b.Fatal(err)
	}
	return time.Duration(n)
}

// benchRequests makes requests of about the size, of eight conversations.
func benchRequests(size int, stream bool) [][]byte {
	var out [][]byte
	for k := range 8 {
		var body bytes.Buffer
		fmt.Fprintf(&body, `{"model":"m","stream":%v,"messages":[{"role":"system","content":"You are assistant number %d."}`, stream, k)
		for i := 0; body.Len() < size-600; i++ {
			fmt.Fprintf(&body, `,{"role":"user","content":"%s"}`, strings.Repeat(fmt.Sprintf("Line %d of a text as people and programs write it: words, and at times a \\\"quoted\\\" one.\\n", i), 5))
		}
		body.WriteString(`],"max_tokens":100}`)
		head := fmt.Sprintf("POST %s HTTP/1.1\r\nHost: gateway\r\nUser-Agent: bench\r\nAuthorization: Bearer x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n", chatPath, body.Len())
		if stream {
			head += "X-Stream: 1\r\n"
		}
		out = append(out, append([]byte(head+"\r\n"), body.Bytes()...))
	}
	return out
}

// load sends n requests over c connections to the addresses in turn.
func load(b *testing.B, addresses []string, requests [][]byte, n, c int) {
	b.Helper()
	var left atomic.Int64
	left.Store(int64(n))
	var group sync.WaitGroup
	for k := range c {
		group.Go(func() {
			conn, err := net.Dial("tcp", addresses[k%len(addresses)])
			if err != nil {
				b.Error(err)
				return
			}
			defer func() { _ = conn.Close() }()
			r := bufio.NewReaderSize(conn, 64<<10)
			for i := k; left.Add(-1) >= 0; i++ {
				if _, err := conn.Write(requests[i%len(requests)]); err != nil {
					b.Error(err)
					return
				}
				if m, err := readMessage(r); err != nil || m.bad {
					b.Errorf("got a bad answer (%v) and error %v", m.bad, err)
					return
				}
			}
		})
	}
	group.Wait()
}

func BenchmarkProxy(b *testing.B) {
	engines := startChild(b, "engines", "")
	reverse, sluice := startChild(b, "reverse", engines.address), startChild(b, "sluice", engines.address)
	kinds := []struct {
		name string
		c    *child
	}{{"direct", engines}, {"reverse", reverse}, {"sluice", sluice}}
	cases := []struct {
		name   string
		size   int
		stream bool
	}{{"KB=2", 2 << 10, false}, {"KB=220", 220 << 10, false}, {"KB=400", 400 << 10, false}, {"stream=200", 2 << 10, true}}
	for _, c := range cases {
		requests := benchRequests(c.size, c.stream)
		for _, concurrency := range []int{1, 32} {
			for _, k := range kinds {
				b.Run(fmt.Sprintf("%s/c=%d/%s", c.name, concurrency, k.name), func(b *testing.B) {
					addresses := strings.Split(k.c.address, ",")
					load(b, addresses, requests, 2*concurrency, concurrency) // connections
					before, other := k.c.cpu(b), time.Duration(0)
					b.ResetTimer()
					const slices = 10
					for i := range slices {
						n := b.N*(i+1)/slices - b.N*i/slices
						load(b, addresses, requests, n, concurrency)
						if k.c != sluice {
							continue
						}
						// The yardstick takes turns with what is measured, so that both meet the same disturbances.
						b.StopTimer()
						began := time.Now()
						load(b, []string{reverse.address}, requests, n, concurrency)
						other += time.Since(began)
						b.StartTimer()
					}
					b.StopTimer()
					cpu := k.c.cpu(b) - before
					b.ReportMetric(float64(cpu.Microseconds())/float64(b.N), "cpu-µs/req")
					b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "req/s")
					if other > 0 {
						b.ReportMetric(other.Seconds()/b.Elapsed().Seconds(), "of-reverse")
					}
				})
			}
		}
	}
}

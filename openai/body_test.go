package openai

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/iotest"
)

// claim says it holds n bytes and counts how many are asked for before it ends.
type claim struct{ asked int }

func (c *claim) Read(p []byte) (int, error) {
	c.asked += len(p)
	return 0, io.ErrUnexpectedEOF
}

func TestReadBodyLimits(t *testing.T) {
	budget := NewBudget(3 << 20)
	if _, err := ReadBody(bytes.NewReader(nil), 101, 100, budget); !errors.Is(err, ErrTooLarge) {
		t.Errorf("announced over the limit: got %v, want ErrTooLarge", err)
	}
	if _, err := ReadBody(bytes.NewReader(make([]byte, 101)), -1, 100, budget); !errors.Is(err, ErrTooLarge) {
		t.Errorf("chunked over the limit: got %v, want ErrTooLarge", err)
	}
	if b, err := ReadBody(bytes.NewReader(make([]byte, 100)), -1, 100, budget); err != nil || b.Len() != 100 {
		t.Errorf("chunked, as long as the limit: got %v", err)
	} else {
		b.Free()
		b.Free()
	}
	for _, length := range []int64{4 << 20, -1} {
		if _, err := ReadBody(bytes.NewReader(make([]byte, 4<<20)), length, 0, budget); !errors.Is(err, ErrBudget) {
			t.Errorf("length %d over the budget: got %v, want ErrBudget", length, err)
		}
	}
	// A client that claims 256 MiB and sends nothing costs one segment.
	c := &claim{}
	if _, err := ReadBody(c, DefaultBodyLimit, 0, budget); !errors.Is(err, io.ErrUnexpectedEOF) || c.asked > maxSegment {
		t.Errorf("empty claim: got %v with %d bytes made ready, want at most %d", err, c.asked, maxSegment)
	}
	if _, err := ReadBody(bytes.NewReader([]byte("ab")), 3, 0, budget); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("short body: got %v, want io.ErrUnexpectedEOF", err)
	}
	// A chunked body that breaks off is not a shorter body.
	if _, err := ReadBody(io.MultiReader(bytes.NewReader([]byte("ab")), &claim{}), -1, 0, budget); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("broken chunked body: got %v, want io.ErrUnexpectedEOF", err)
	}
	if budget.Used() != 0 {
		t.Errorf("%d bytes still reserved", budget.Used())
	}
}

func TestLargeBodyIsHeldOnce(t *testing.T) {
	const size = 5<<20 + 1
	for _, length := range []int64{size, -1} {
		budget := NewBudget(0)
		b, err := ReadBody(iotest.HalfReader(bytes.NewReader(make([]byte, size))), length, 0, budget)
		if err != nil {
			t.Fatal(err)
		}
		if used := budget.Used(); used < size || used > size+2*maxSegment {
			t.Errorf("length %d: %d bytes reserved for %d", length, used, size)
		}
		b.Free()
	}
}

func TestMemoryOutlivesFreeUntilReadersClose(t *testing.T) {
	budget := NewBudget(0)
	p := []byte("the body")
	b, err := ReadBody(bytes.NewReader(p), -1, 0, budget)
	if err != nil {
		t.Fatal(err)
	}
	r := b.Reader()
	b.Free()
	if got, err := io.ReadAll(r); err != nil || !bytes.Equal(got, p) {
		t.Errorf("after Free: got %q, %v, want %q", got, err, p)
	}
	if budget.Used() == 0 {
		t.Error("memory went back under an open reader")
	}
	r.Close()
	r.Close()
	if budget.Used() != 0 {
		t.Errorf("%d bytes still reserved after Close", budget.Used())
	}
	if _, err := r.Read(make([]byte, 1)); err != ErrClosed {
		t.Errorf("Read after Close: got %v, want ErrClosed", err)
	}
	if _, err := b.Reader().Read(make([]byte, 1)); err != ErrClosed {
		t.Errorf("new reader of a body that is gone: got %v, want ErrClosed", err)
	}
}

// stuck is a connection that takes nothing until it is let go.
type stuck struct {
	once    sync.Once
	started chan bool
	release chan bool
	got     []byte
}

func (s *stuck) Write(p []byte) (int, error) {
	s.once.Do(func() { close(s.started) })
	<-s.release
	s.got = append(s.got, p...)
	return len(p), nil
}

func TestCloseDoesNotWaitForAWriteUnderWay(t *testing.T) {
	budget := NewBudget(0)
	p := bytes.Repeat([]byte("x"), 3<<20)
	b, err := ReadBody(bytes.NewReader(p), int64(len(p)), 0, budget)
	if err != nil {
		t.Fatal(err)
	}
	r := b.Reader()
	w := &stuck{started: make(chan bool), release: make(chan bool)}
	result := make(chan error)
	go func() {
		_, err := r.(io.WriterTo).WriteTo(w)
		result <- err
	}()
	<-w.started
	r.Close()
	b.Free()
	if budget.Used() == 0 {
		t.Error("memory went back under a write")
	}
	close(w.release)
	if err := <-result; err != ErrClosed {
		t.Errorf("write across Close: got %v, want ErrClosed", err)
	}
	if !bytes.Equal(w.got, p[:len(w.got)]) || len(w.got) != maxSegment {
		t.Errorf("wrote %d bytes after Close, want the %d under way, unchanged", len(w.got), maxSegment)
	}
	if budget.Used() != 0 {
		t.Errorf("%d bytes still reserved", budget.Used())
	}
}

// Many senders give up at once while their bodies are still being written; run with -race.
func TestBodiesUnderNetHTTP(t *testing.T) {
	budget := NewBudget(0)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, _ := io.Copy(io.Discard, io.LimitReader(r.Body, 1<<20))
		if n != 1<<20 {
			w.WriteHeader(http.StatusTeapot)
		}
	}))
	defer server.Close()
	var wait sync.WaitGroup
	for i := range 16 {
		wait.Go(func() {
			fill := byte('a' + i)
			p := bytes.Repeat([]byte{fill}, 2<<20)
			b, err := ReadBody(bytes.NewReader(p), int64(len(p)), 0, budget)
			if err != nil {
				t.Error(err)
				return
			}
			req, err := http.NewRequest(http.MethodPost, server.URL, b.Reader())
			if err != nil {
				t.Error(err)
				return
			}
			req.ContentLength = b.Len()
			if resp, err := http.DefaultClient.Do(req); err == nil {
				resp.Body.Close()
			}
			b.Free()
		})
	}
	wait.Wait()
	http.DefaultClient.CloseIdleConnections()
	server.CloseClientConnections()
}

func TestReadBodyAllocations(t *testing.T) {
	p := make([]byte, 400_000)
	budget := NewBudget(1 << 30)
	src := bytes.NewReader(p)
	got := testing.AllocsPerRun(100, func() {
		src.Reset(p)
		b, err := ReadBody(src, int64(len(p)), 0, budget)
		if err != nil {
			t.Fatal(err)
		}
		b.Free()
	})
	// The Body itself. A collection may empty the pool in between, hence the average.
	if got > 1.5 {
		t.Errorf("ReadBody: got %v allocations, want 1", got)
	}
}

// wideConn is a connection as CopyBody wants it used.
type wideConn struct {
	net.Conn
	mu     *sync.Mutex
	writes *[]int
}

func (c wideConn) Write(p []byte) (int, error) {
	c.mu.Lock()
	*c.writes = append(*c.writes, len(p))
	c.mu.Unlock()
	return c.Conn.Write(p)
}

func (c wideConn) ReadFrom(r io.Reader) (int64, error) {
	if n, ok, err := CopyBody(c, r); ok {
		return n, err
	}
	return io.Copy(struct{ io.Writer }{c}, r)
}

func TestCopyBodyUnderNetHTTP(t *testing.T) {
	p := bytes.Repeat([]byte("0123456789"), 40_000)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if got, err := io.ReadAll(r.Body); err != nil || !bytes.Equal(got, p) {
			w.WriteHeader(http.StatusTeapot)
		}
	}))
	defer server.Close()
	var mu sync.Mutex
	var writes []int
	transport := &http.Transport{DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, addr)
		return wideConn{conn, &mu, &writes}, err
	}}
	defer transport.CloseIdleConnections()
	b, err := ReadBody(bytes.NewReader(p), int64(len(p)), 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Free()
	for _, body := range []io.ReadCloser{b.Reader(), io.NopCloser(bytes.NewReader(p))} {
		req, err := http.NewRequest(http.MethodPost, server.URL, body)
		if err != nil {
			t.Fatal(err)
		}
		req.ContentLength = int64(len(p))
		resp, err := transport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			t.Errorf("the server got another body")
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if len(writes) < 2 || writes[1] != len(p) {
		t.Errorf("got writes of %v bytes, want the header and then all %d", writes, len(p))
	}
}

// A body over memory of someone else's is read like any other; its owner is told once, after the last reader and the holder.
func TestBodyOfOthersMemory(t *testing.T) {
	parts := [][]byte{[]byte("one "), nil, []byte("two")}
	done := 0
	b := lentBody(parts, func() { done++ })
	if b.Len() != 7 {
		t.Errorf("got a length of %d, want 7", b.Len())
	}
	first, second := b.Reader(), b.Reader()
	for _, r := range []io.ReadCloser{first, second} {
		if p, err := io.ReadAll(r); err != nil || string(p) != "one two" {
			t.Errorf("got %q, %v", p, err)
		}
	}
	b.Free()
	b.Free()
	_ = first.Close()
	if done != 0 {
		t.Error("the memory was given back while a reader is open")
	}
	_ = second.Close()
	if done != 1 {
		t.Errorf("the memory was given back %d times, want once", done)
	}
	lentBody(nil, nil).Free()
}

// Such a body counts in the budget, and what is over it or over the limit is given back at once.
func TestHoldBounds(t *testing.T) {
	budget := NewBudget(10)
	done := 0
	hold := func(text string, limit int64) (*Body, error) {
		return budget.Hold([][]byte{[]byte(text)}, limit, func() { done++ })
	}
	b, err := hold("seven ..", 8)
	if err != nil || budget.Used() != 8 || done != 0 {
		t.Fatalf("got %v with %d bytes used, want 8", err, budget.Used())
	}
	if _, err := hold("three", 0); !errors.Is(err, ErrBudget) || done != 1 || budget.Used() != 8 {
		t.Errorf("got %v, %d given back and %d used, want it over the budget", err, done, budget.Used())
	}
	if _, err := hold("123", 2); !errors.Is(err, ErrTooLarge) || done != 2 || budget.Used() != 8 {
		t.Errorf("got %v, %d given back and %d used, want it over the limit", err, done, budget.Used())
	}
	b.Free()
	if done != 3 || budget.Used() != 0 {
		t.Errorf("got %d given back and %d used, want 3 and 0", done, budget.Used())
	}
	// What it unpacks to is bounded by the same two.
	packed := encode(t, "gzip", bytes.Repeat([]byte(" "), 20_000))
	big, err := NewBudget(1<<20).Hold([][]byte{packed}, 1000, nil)
	if err != nil {
		t.Fatal(err)
	}
	var s Scratch
	if _, err := Read("application/json", "gzip", big, &s); err == nil || AsError(err).Case != TooLarge {
		t.Errorf("got %v, want too large", err)
	}
	var none *Budget
	if b, err = none.Hold([][]byte{[]byte("x")}, 0, nil); err != nil || b.Len() != 1 {
		t.Errorf("got %v without a budget", err)
	}
}

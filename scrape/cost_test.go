package scrape

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/fleet"
)

// serversVariable makes this test binary a process of so many cheap metrics servers, so that their work is not counted
// as the scraper's.
const serversVariable = "SLUICE_TEST_SERVERS"

func TestMain(m *testing.M) {
	if n, err := strconv.Atoi(os.Getenv(serversVariable)); err == nil {
		serveCheaply(n, os.Getenv(serversVariable+"_PAGE"), os.Getenv(serversVariable+"_PART"))
		return
	}
	os.Exit(m.Run())
}

// serveCheaply answers every request on n ports with a prepared page, and one for chosen samples with another if there
// is one, until its input ends. It writes the addresses to its output.
func serveCheaply(n int, file, part string) {
	answer := func(kind string, body []byte) []byte {
		return fmt.Appendf(nil, "HTTP/1.1 200 OK\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s", kind, len(body), body)
	}
	read := func(file string) []byte {
		page, err := os.ReadFile(file)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		return answer("text/plain", page)
	}
	metrics, models := read(file), answer("application/json", []byte(vllmModels))
	chosen := []byte("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
	if part != "" {
		chosen = read(part)
	}
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return
		}
		fmt.Println(l.Addr())
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go func() {
					defer c.Close()
					r := bufio.NewReader(c)
					var first []byte
					for {
						line, err := r.ReadSlice('\n')
						switch {
						case err != nil:
							return
						case len(line) > 2:
							if len(first) == 0 {
								first = append(first, line...)
							}
							continue
						case bytes.Contains(first, []byte(modelsPath)):
							c.Write(models)
						case bytes.Contains(first, []byte("/metrics/?")):
							c.Write(chosen)
						default:
							c.Write(metrics)
						}
						first = first[:0]
					}
				}()
			}
		}()
	}
	_, _ = bufio.NewReader(os.Stdin).ReadString(0)
}

// startServers runs them in a process of their own; part, if any, are the chosen samples.
func startServers(b *testing.B, n int, page, part []byte) (addresses []string) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d", serversVariable, n))
	for name, body := range map[string][]byte{"_PAGE": page, "_PART": part} {
		file := b.TempDir() + "/" + name
		if body == nil {
			continue
		}
		if err := os.WriteFile(file, body, 0o600); err != nil {
			b.Fatal(err)
		}
		cmd.Env = append(cmd.Env, serversVariable+name+"="+file)
	}
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
		in.Close()
		_ = cmd.Wait()
	})
	lines := bufio.NewScanner(out)
	for range n {
		if !lines.Scan() {
			b.Fatal("the servers did not start")
		}
		addresses = append(addresses, strings.TrimSpace(lines.Text()))
	}
	return addresses
}

func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkScraper measures what scraping 100 endpoints with pages of 100 KB over loopback costs this process, where all
// of a page comes and where what is read can be asked for alone. The goal is a tenth of a core at 200 ms, and a quarter
// at 50 ms.
func BenchmarkScraper(b *testing.B) {
	page := bigPage(b, 100<<10)
	part := chosenOf(page, newScanner(dialectOf("vllm")).wanted())
	for _, of := range []struct {
		interval time.Duration
		what     string
		part     []byte
	}{
		{200 * time.Millisecond, "whole", nil}, {200 * time.Millisecond, "narrow", part},
		{50 * time.Millisecond, "whole", nil}, {50 * time.Millisecond, "narrow", part},
	} {
		interval := of.interval
		b.Run(interval.String()+"/"+of.what, func(b *testing.B) {
			const seconds = 4
			var eps []fleet.Endpoint
			for _, a := range startServers(b, 100, page, of.part) {
				eps = append(eps, ep(a))
			}
			f := &fleet.Fleet{}
			f.Apply([]fleet.PoolConfig{{Name: "p", Model: "m", Endpoints: eps}}, "")
			p, err := New(f, Options{Interval: interval})
			if err != nil {
				b.Fatal(err)
			}
			ctx, cancel := context.WithCancel(b.Context())
			done := make(chan error)
			go func() { done <- p.Run(ctx) }()
			second := time.NewTicker(time.Second)
			defer second.Stop()
			<-second.C
			var cpu time.Duration
			for b.Loop() {
				before := cpuTime(b)
				for range seconds {
					<-second.C
				}
				cpu += cpuTime(b) - before
			}
			scrapes := float64(b.N) * 100 * seconds / interval.Seconds()
			b.ReportMetric(cpu.Seconds()/float64(b.N)/seconds, "cores")
			b.ReportMetric(float64(cpu.Microseconds())/scrapes, "cpu-µs/scrape")
			for _, s := range f.Pools()[0].Status(p.opts.Now()) {
				if s.State != "ready" {
					b.Fatalf("got %s %s: %s, want every endpoint read", s.Endpoint.Name, s.State, s.Why)
				}
			}
			cancel()
			<-done
		})
	}
}

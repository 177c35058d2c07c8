//go:build (doors || vllm || peers || dataplane) && unix

package e2e

import (
	"net"
	"strconv"
	"testing"
)

// freePorts finds n ports in a row that nobody listens on.
func freePorts(t *testing.T, n int) []int {
	t.Helper()
	for range 100 {
		first, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		held := []net.Listener{first}
		ports := []int{first.Addr().(*net.TCPAddr).Port}
		for len(ports) < n {
			next, err := net.Listen("tcp", loopback(ports[0]+len(ports)))
			if err != nil {
				break
			}
			held, ports = append(held, next), append(ports, ports[0]+len(ports))
		}
		for _, l := range held {
			l.Close()
		}
		if len(ports) == n {
			return ports
		}
	}
	t.Fatalf("cannot find %d free ports in a row on the loopback", n)
	return nil
}

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

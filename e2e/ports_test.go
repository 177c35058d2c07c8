//go:build (doors || vllm || peers || dataplane) && unix

package e2e

import (
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"testing"
)

// The ports that tests give away are below those that a kernel gives to whoever asks for any (from 32768 on Linux, from 49152 elsewhere): a
// server that starts late, or again, finds its port as free as it was found, whatever connects and listens meanwhile.
const firstPort, endOfPorts = 18000, 32000

var ports struct {
	sync.Mutex
	next int // no port is given away twice, unless all were
}

// freePorts finds n ports in a row that nobody listens on, at any address of this machine, and gives them to no other caller.
func freePorts(t *testing.T, n int) []int {
	t.Helper()
	ports.Lock()
	defer ports.Unlock()
	if ports.next == 0 {
		ports.next = firstPort + rand.IntN((endOfPorts-firstPort)/2)
	}
	var found []int
	for range endOfPorts - firstPort {
		if ports.next == endOfPorts {
			ports.next, found = firstPort, nil
		}
		l, err := net.Listen("tcp", ":"+strconv.Itoa(ports.next))
		if err != nil {
			found = nil
		} else {
			l.Close()
			found = append(found, ports.next)
		}
		ports.next++
		if len(found) == n {
			return found
		}
	}
	t.Fatalf("cannot find %d free ports in a row from %d to %d", n, firstPort, endOfPorts-1)
	return nil
}

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

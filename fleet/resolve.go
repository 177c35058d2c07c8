package fleet

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"sync"
)

// LookupFunc gives the addresses of a name, as net.Resolver.LookupNetIP does for the network "ip".
type LookupFunc func(ctx context.Context, network, host string) ([]netip.Addr, error)

// Resolver turns configured endpoints, whose Host may be a name, into endpoints with addresses. It remembers the last
// good answer for each name, so that a name server that fails for a while takes nothing out of traffic. It must not be
// used by two goroutines at once.
type Resolver struct {
	// Lookup asks for a name; nil means the system's resolver.
	Lookup LookupFunc
	last   map[string][]netip.Addr
}

// Resolve expands each endpoint's Host ("name:port", "10.0.0.1:8000", "[fd00::1]:8000") into one endpoint per address,
// with Name set, and that into one for each data-parallel rank it has. A name with several addresses, as a headless service has, is several endpoints; of a name with
// addresses of both families the IPv4 ones count, since they are the same servers. Names are asked for side by side.
// What could not be resolved is returned by Host, whether an earlier answer stands in for it or not.
func (r *Resolver) Resolve(ctx context.Context, configured []Endpoint) ([]Endpoint, map[string]error) {
	return r.expand(configured, r.ask(ctx, configured))
}

// Remembered is Resolve by what earlier answers said: it asks nobody, and leaves out names that have none.
func (r *Resolver) Remembered(configured []Endpoint) []Endpoint {
	out, _ := r.expand(configured, nil)
	return out
}

func (r *Resolver) expand(configured []Endpoint, answers map[string]*answer) ([]Endpoint, map[string]error) {
	faults := make(map[string]error)
	out := make([]Endpoint, 0, len(configured))
	for _, e := range configured {
		host, port, err := net.SplitHostPort(e.Host)
		if err != nil {
			faults[e.Host] = fmt.Errorf("cannot use endpoint %q: %w", e.Host, err)
			continue
		}
		addrs := []netip.Addr{}
		if literal, err := netip.ParseAddr(host); err == nil {
			addrs = append(addrs, literal)
		} else {
			switch answer := answers[host]; {
			case answer == nil: // nobody was asked
			case answer.err != nil:
				faults[e.Host] = fmt.Errorf("cannot resolve endpoint %q: %w", e.Host, answer.err)
			default:
				r.last[host] = answer.addrs
			}
			addrs = r.last[host]
		}
		for _, a := range addrs {
			e.Name = net.JoinHostPort(a.String(), port)
			out = appendRanks(out, e)
		}
	}
	return out, faults
}

// appendRanks adds the endpoints at an address: one, or one for each data-parallel rank.
func appendRanks(out []Endpoint, e Endpoint) []Endpoint {
	if e.Ranks == 0 {
		return append(out, e)
	}
	address := e.Name
	for i := range e.Ranks {
		e.Rank = e.FirstRank + i
		e.Name = address + "@" + strconv.Itoa(e.Rank)
		out = append(out, e)
	}
	return out
}

// answer is what a name server said of one name.
type answer struct {
	addrs []netip.Addr
	err   error
}

// ask looks every name among the endpoints up, all at once.
func (r *Resolver) ask(ctx context.Context, configured []Endpoint) map[string]*answer {
	if r.last == nil {
		r.last = make(map[string][]netip.Addr)
	}
	lookup := r.Lookup
	if lookup == nil {
		lookup = net.DefaultResolver.LookupNetIP
	}
	answers := make(map[string]*answer)
	var asked sync.WaitGroup
	for _, e := range configured {
		host, _, err := net.SplitHostPort(e.Host)
		if _, literal := netip.ParseAddr(host); err != nil || literal == nil || answers[host] != nil {
			continue
		}
		a := new(answer)
		answers[host] = a
		asked.Go(func() { a.addrs, a.err = addresses(ctx, lookup, host) })
	}
	asked.Wait()
	return answers
}

// addresses gives the sorted addresses of a name.
func addresses(ctx context.Context, lookup LookupFunc, host string) ([]netip.Addr, error) {
	found, err := lookup(ctx, "ip", host)
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("the name %q has no address", host)
	}
	for i := range found {
		found[i] = found[i].Unmap()
	}
	if v4 := slices.DeleteFunc(slices.Clone(found), netip.Addr.Is6); len(v4) > 0 {
		found = v4
	}
	slices.SortFunc(found, netip.Addr.Compare)
	return slices.Compact(found), nil
}

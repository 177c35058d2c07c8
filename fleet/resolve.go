package fleet

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
)

// LookupFunc gives the addresses of a name, as net.Resolver.LookupNetIP does for the network "ip".
type LookupFunc func(ctx context.Context, network, host string) ([]netip.Addr, error)

// Resolver turns configured endpoints, whose Host may be a name, into endpoints with addresses. It remembers the last good answer
// for each name, so that a name server that fails for a while takes nothing out of traffic. It must not be used by two
// goroutines at once.
type Resolver struct {
	// Lookup asks for a name; nil means the system's resolver.
	Lookup LookupFunc
	last   map[string][]netip.Addr
}

// Resolve expands each endpoint's Host ("name:port", "10.0.0.1:8000", "[fd00::1]:8000") into one endpoint per address, with Name set. A name with
// several addresses, as a headless service has, is several endpoints; of a name with addresses of both families the IPv4
// ones count, since they are the same servers. There is an error for every name that could
// not be resolved, whether or not its last good answer stands in for it.
func (r *Resolver) Resolve(ctx context.Context, configured []Endpoint) ([]Endpoint, []error) {
	lookup := r.Lookup
	if lookup == nil {
		lookup = net.DefaultResolver.LookupNetIP
	}
	if r.last == nil {
		r.last = make(map[string][]netip.Addr)
	}
	var out []Endpoint
	var faults []error
	for _, e := range configured {
		host, port, err := net.SplitHostPort(e.Host)
		if err != nil {
			faults = append(faults, fmt.Errorf("cannot use endpoint %q: %w", e.Host, err))
			continue
		}
		addrs, err := r.addresses(ctx, lookup, host)
		if err != nil {
			faults = append(faults, fmt.Errorf("cannot resolve endpoint %q: %w", e.Host, err))
		}
		for _, a := range addrs {
			e.Name = net.JoinHostPort(a.String(), port)
			out = append(out, e)
		}
	}
	return out, faults
}

// addresses gives the sorted addresses of a host: of the last good answer, where there is an error and there was one.
func (r *Resolver) addresses(ctx context.Context, lookup LookupFunc, host string) ([]netip.Addr, error) {
	if a, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{a}, nil
	}
	found, err := lookup(ctx, "ip", host)
	if err == nil && len(found) == 0 {
		err = fmt.Errorf("the name %q has no address", host)
	}
	if err != nil {
		return r.last[host], err
	}
	for i := range found {
		found[i] = found[i].Unmap()
	}
	if v4 := slices.DeleteFunc(slices.Clone(found), netip.Addr.Is6); len(v4) > 0 {
		found = v4
	}
	slices.SortFunc(found, netip.Addr.Compare)
	found = slices.Compact(found)
	r.last[host] = found
	return found, nil
}

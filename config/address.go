package config

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
)

// address takes host, host:port, [IPv6] or [IPv6]:port apart. The port is 0 where there is none. An IPv6 address
// outside brackets is refused, because nobody can tell fd00::1:8000 with a port from the address fd00::1:8000.
func address(s string) (host string, port int, err error) {
	if scheme, _, found := strings.Cut(s, "://"); found {
		return "", 0, fmt.Errorf("must be HOST or HOST:PORT, without %s://", scheme)
	}
	if strings.ContainsAny(s, "/?#@ \t\r\n") {
		return "", 0, errors.New("must be HOST or HOST:PORT and nothing else")
	}
	host = s
	switch {
	case strings.HasPrefix(s, "[") && strings.HasSuffix(s, "]"):
		host = s[1 : len(s)-1]
	case strings.HasPrefix(s, "["), strings.Count(s, ":") == 1:
		var text string
		if host, text, err = net.SplitHostPort(s); err != nil {
			return "", 0, errors.New("must be HOST, HOST:PORT, [IPv6] or [IPv6]:PORT")
		}
		if port, err = strconv.Atoi(text); err != nil || port < 1 || port > 65535 || text[0] == '+' {
			return "", 0, fmt.Errorf("has port %q, which must be from 1 to 65535", text)
		}
	case strings.Count(s, ":") > 1:
		return "", 0, fmt.Errorf("has an IPv6 address outside brackets: write [%s], or [ADDRESS]:PORT", s)
	}
	host, err = canonical(host, strings.HasPrefix(s, "["))
	return host, port, err
}

// CanonicalAddress writes the address of an endpoint in the one way that compares equal. What is no address stays as it is:
// Parse says what is wrong with it.
func CanonicalAddress(s string) string {
	host, port, err := address(s)
	switch {
	case err != nil:
		return s
	case port != 0:
		return net.JoinHostPort(host, strconv.Itoa(port))
	case strings.Contains(host, ":"):
		return "[" + host + "]"
	}
	return host
}

var (
	hostName = regexp.MustCompile(`^[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?(\.[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?)*\.?$`)
	numeric  = regexp.MustCompile(`(^|\.)([0-9]+|0[xX][0-9a-fA-F]*)\.?$`)
)

// canonical checks a host and writes it in the one way that compares equal.
func canonical(host string, bracketed bool) (string, error) {
	ip, err := netip.ParseAddr(host)
	switch {
	case err == nil && bracketed && !ip.Is6():
		return "", errors.New("has brackets around what is no IPv6 address")
	case err == nil && ip.IsUnspecified():
		return "", errors.New("is the address of no machine in particular: endpoints need one that can be reached")
	case err == nil:
		return ip.Unmap().String(), nil
	case bracketed:
		return "", errors.New("must have an IPv6 address between its brackets")
	case host == "":
		return "", errors.New("has no host")
	case len(host) > 253 || !hostName.MatchString(host):
		return "", errors.New("must be an IP address or a host name")
	case numeric.MatchString(host):
		return "", errors.New("ends in a number as an IP address does, and is none")
	}
	return strings.ToLower(host), nil
}

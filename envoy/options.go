package envoy

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/sluice-gateway/sluice/front"
	"github.com/sluice-gateway/sluice/openai"
)

// Options is what a configuration is made from. It is a value; nothing is written to it.
type Options struct {
	// Name is the gateway's, in Envoy's node; empty for none.
	Name string
	// Listen is the address for clients, Admin that of Envoy's own administration, which belongs on loopback; one that begins with a
	// slash is the path of a Unix socket.
	Listen, Admin string
	// Certificate is how clients are spoken to by TLS; nil means plain HTTP/1.1 and HTTP/2.
	Certificate *Certificate
	// JWT is what tokens clients must have; nil means none.
	JWT *JWT
	// Picker is how this gateway's picker is reached.
	Picker Picker
	// FailureMode says what becomes of requests while the picker can't be asked.
	FailureMode FailureMode
	// Pools are what requests can be sent to.
	Pools []Pool
	// MaxBodyBytes bounds one request body; 413 beyond. 0 means openai.DefaultBodyLimit.
	MaxBodyBytes int64
	// Memory is the heap Envoy may have for everything: near it buffers are shrunk, at it requests are refused. 0 means
	// DefaultMemory.
	Memory int64
	// TrustHeaders keeps the routing headers that clients send, for clients that are gateways themselves.
	TrustHeaders bool
	// IdleTimeout is how long a request may show no byte in either direction: between two bytes of an answer and before its
	// first one, which Envoy can't tell apart. 0 means DefaultIdleTimeout, negative none.
	IdleTimeout time.Duration
	// ConnectTimeout bounds connecting to an endpoint. 0 means DefaultConnectTimeout.
	ConnectTimeout time.Duration
	// AttemptTimeout is how long one endpoint may keep a request without answer headers; 0 means no limit.
	AttemptTimeout time.Duration
	// Retries is how often a request may be sent once more, to the next endpoint in the picker's list. 0 means
	// DefaultRetries, negative none.
	Retries int
	// FullDuplex has request bodies passed through the picker piece by piece instead of held by Envoy.
	FullDuplex bool
	// AccessLog is the file of the access log, such as /dev/stdout; empty for none.
	AccessLog string
	// OwnAgent is the User-Agent of requests that the gateway itself makes, which the access log leaves out; empty for none. It
	// should be nobody else's.
	OwnAgent string
	// Dynamic leaves listener, routes and clusters to discovery, so that changed options need no new bootstrap. Without the
	// picker such an Envoy starts with nothing.
	Dynamic bool
	// RootsFile holds the authorities that certificates are checked against where nothing else is named. Empty means
	// DefaultRootsFile.
	RootsFile string
}

// Defaults of Options.
const (
	DefaultMemory         = 2 << 30
	DefaultIdleTimeout    = 10 * time.Minute
	DefaultConnectTimeout = front.DefaultConnectTimeout
	DefaultRetries        = front.DefaultMaxAttempts - 1
	DefaultRootsFile      = "/etc/ssl/certs/ca-certificates.crt"
)

// Certificate is the gateway's own certificate, as PEM files that Envoy reads. SDSFile, when set, is where a file of
// SDSResource lies: by it Envoy takes renewed certificates over.
type Certificate struct {
	CertFile, KeyFile, SDSFile string
}

// Picker is how Envoy reaches the picker, which is also where it hears of endpoints.
type Picker struct {
	// Address is HOST:PORT.
	Address string
	// TLS is nil for plain text.
	TLS *PickerTLS
	// MessageTimeout is how long one answer may take, and QueueTimeout how long one may when the picker asks for time
	// because a request queues. 0 means DefaultMessageTimeout and DefaultQueueTimeout.
	MessageTimeout, QueueTimeout time.Duration
}

// Defaults of Picker.
const (
	DefaultMessageTimeout = 5 * time.Second
	DefaultQueueTimeout   = front.DefaultQueueTimeout
)

// PickerTLS is how Envoy checks the picker's certificate, and the certificate that it shows, if any.
type PickerTLS struct {
	CAFile, ServerName string
	CertFile, KeyFile  string
}

// FailureMode says what becomes of requests while the picker can't be asked.
type FailureMode string

// The failure modes: 503, or any of the pool's configured endpoints in turn.
const (
	FailClose FailureMode = "FailClose"
	FailOpen  FailureMode = "FailOpen"
)

// Pool is one model's endpoints.
type Pool struct {
	// Name is unique.
	Name string
	// Model is what the picker calls the pool by, its base model; empty for the pool of unknown models, which it calls by
	// name.
	Model string
	// H2C means HTTP/2 with prior knowledge.
	H2C bool
	// RouteTimeout bounds a whole request; 0 means no bound.
	RouteTimeout time.Duration
	// Endpoints are the configured ones. Which addresses they have at the moment comes by discovery.
	Endpoints []Endpoint
}

// Endpoint is one configured endpoint.
type Endpoint struct {
	// Host is HOST:PORT, as configured and as sent in the Host header.
	Host string
	// TLS is nil for plain text.
	TLS *TLS
	// Drain: it gets no request.
	Drain bool
}

// TLS is how an endpoint's certificate is checked.
type TLS struct {
	// CAFile is empty for the system's authorities.
	CAFile string
	// ServerName is the name, or the address, that the certificate has.
	ServerName string
	// InsecureSkipVerify takes any certificate.
	InsecureSkipVerify bool
}

// JWT is what tokens clients must have.
type JWT struct {
	Name, Issuer, JWKSURI string
	// Audiences: a token must be meant for one of them; empty for anyone.
	Audiences []string
	// Claims: a token must satisfy each.
	Claims []Claim
}

// Claim is a claim that a token must have, with one of the values: as its value, or among them where it is a list.
type Claim struct {
	Name   string
	List   bool
	Values []string
}

// key is the value of the header by which the picker names the pool.
func (p *Pool) key() string {
	if p.Model == "" {
		return p.Name
	}
	return p.Model
}

func (o Options) withDefaults() Options {
	setDefault(&o.MaxBodyBytes, openai.DefaultBodyLimit)
	setDefault(&o.Memory, DefaultMemory)
	setDefault(&o.IdleTimeout, DefaultIdleTimeout)
	setDefault(&o.ConnectTimeout, DefaultConnectTimeout)
	setDefault(&o.Retries, DefaultRetries)
	setDefault(&o.Picker.MessageTimeout, DefaultMessageTimeout)
	setDefault(&o.Picker.QueueTimeout, DefaultQueueTimeout)
	setDefault(&o.RootsFile, DefaultRootsFile)
	setDefault(&o.FailureMode, FailClose)
	o.IdleTimeout, o.Retries = max(o.IdleTimeout, 0), max(o.Retries, 0)
	return o
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// check reports everything that no configuration can be made of, at once.
func (o *Options) check() error {
	var faults []error
	for _, a := range []struct{ what, address string }{{"listen", o.Listen}, {"picker", o.Picker.Address}, {"admin", o.Admin}} {
		if a.what == "admin" && isPath(a.address) {
			continue
		}
		if _, _, err := splitAddress(a.address); err != nil {
			faults = append(faults, fmt.Errorf("cannot use %s address %q: %w", a.what, a.address, err))
		}
	}
	switch o.FailureMode {
	case FailClose:
	case FailOpen:
		faults = append(faults, o.checkOpen()...)
	default:
		faults = append(faults, fmt.Errorf("cannot use failure mode %q: it is %s or %s", o.FailureMode, FailClose, FailOpen))
	}
	if len(o.Pools) == 0 {
		faults = append(faults, errors.New("cannot configure a gateway without pools"))
	}
	names, keys := make(map[string]bool), make(map[string]bool)
	for i := range o.Pools {
		p := &o.Pools[i]
		if names[p.Name] || keys[p.key()] {
			faults = append(faults, fmt.Errorf("cannot use pool %q twice, nor model %q: a request has to find one pool", p.Name, p.Model))
		}
		names[p.Name], keys[p.key()] = true, true
		for _, text := range []string{p.Name, p.Model} {
			if !utf8.ValidString(text) || strings.ContainsFunc(text, unicode.IsControl) {
				faults = append(faults, fmt.Errorf("cannot use %q in a header: it has a control character or is not UTF-8", text))
			}
		}
	}
	return errors.Join(faults...)
}

// checkOpen says why a gateway can't fail open.
func (o *Options) checkOpen() (faults []error) {
	if len(o.Pools) != 1 {
		faults = append(faults, fmt.Errorf("cannot fail open with %d pools: without a picker nobody knows which model a request is for: use %s, or a gateway for each model", len(o.Pools), FailClose))
	}
	if o.FullDuplex {
		faults = append(faults, fmt.Errorf("cannot fail open with bodies that pass through the picker: what it has of one is gone with it: use %s, or buffered bodies", FailClose))
	}
	if len(o.Pools) == 1 && len(o.Pools[0].serving()) == 0 {
		faults = append(faults, fmt.Errorf("cannot fail open: pool %q has no configured endpoint that takes requests", o.Pools[0].Name))
	}
	return faults
}

// serving are the configured endpoints that take requests.
func (p *Pool) serving() []Endpoint {
	return slices.DeleteFunc(slices.Clone(p.Endpoints), func(e Endpoint) bool { return e.Drain })
}

func splitAddress(address string) (host string, port uint32, err error) {
	host, text, err := net.SplitHostPort(address)
	if err != nil {
		return "", 0, err
	}
	n, err := net.LookupPort("tcp", text)
	if err != nil {
		return "", 0, err
	}
	if host == "" {
		host = "0.0.0.0"
	}
	return host, uint32(n), nil
}

package kube

import (
	"fmt"
	"slices"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
)

// lacking are certificates of ours that Envoy Gateway's clusters show and that it does not send: 1.9.1 sends those of routes,
// and leaves out those of the Services that policies have asked. An Envoy that waits for one connects to nobody.
func (t *translation) lacking(q *translateRequest) ([]*tlsv3.Secret, error) {
	wanted := make(map[string]bool)
	for _, c := range q.Clusters {
		if err := shownBy(c, wanted); err != nil {
			return nil, fmt.Errorf("cannot read cluster %q: %w", c.Name, err)
		}
	}
	for _, s := range q.Secrets {
		delete(wanted, s.Name)
	}
	var list []*tlsv3.Secret
	for _, config := range sortedKeys(t.shown) {
		if shown := t.shown[config]; shown != nil && wanted[shown.secret] {
			list = append(list, shown.certificate(shown.secret))
		}
	}
	return list, nil
}

// shownBy notes the names of the certificates that a cluster shows, as far as they come over discovery.
func shownBy(c *clusterv3.Cluster, into map[string]bool) error {
	sockets := []*corev3.TransportSocket{c.TransportSocket}
	for _, m := range c.TransportSocketMatches {
		sockets = append(sockets, m.TransportSocket)
	}
	for _, s := range slices.DeleteFunc(sockets, func(s *corev3.TransportSocket) bool {
		return !s.GetTypedConfig().MessageIs(new(tlsv3.UpstreamTlsContext))
	}) {
		tls := new(tlsv3.UpstreamTlsContext)
		if err := s.GetTypedConfig().UnmarshalTo(tls); err != nil {
			return err
		}
		for _, secret := range tls.GetCommonTlsContext().GetTlsCertificateSdsSecretConfigs() {
			into[secret.Name] = true
		}
	}
	return nil
}

// certificate is the one that is shown, under a name.
func (s *shownTo) certificate(name string) *tlsv3.Secret {
	return &tlsv3.Secret{Name: name, Type: &tlsv3.Secret_TlsCertificate{TlsCertificate: &tlsv3.TlsCertificate{CertificateChain: inline(s.cert), PrivateKey: inline(s.key)}}}
}

package extproc

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
)

// LoadTLS makes the settings of a server whose certificate and key are files, which asks for certificates of an
// authority if that is named, too. The files are read again for every connection, of which an Envoy makes few, so that
// they may be renewed while the picker runs. It is nil if no file is named.
func LoadTLS(cert, key, authority string) (*tls.Config, error) {
	switch {
	case cert == "" && key == "" && authority == "":
		return nil, nil
	case cert == "" || key == "":
		return nil, errors.New("a certificate and its key go together, and an authority for Envoy's certificates needs both")
	}
	load := func() (*tls.Config, error) {
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return nil, fmt.Errorf("cannot load the picker's certificate: %w", err)
		}
		c := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2"}, Certificates: []tls.Certificate{pair}}
		if authority == "" {
			return c, nil
		}
		text, err := os.ReadFile(authority)
		if err != nil {
			return nil, fmt.Errorf("cannot read the authority of Envoy's certificates: %w", err)
		}
		c.ClientCAs, c.ClientAuth = x509.NewCertPool(), tls.RequireAndVerifyClientCert
		if !c.ClientCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("cannot use the authority of Envoy's certificates %q: there is no certificate in it", authority)
		}
		return c, nil
	}
	c, err := load()
	if err != nil {
		return nil, err
	}
	c.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return load() }
	return c, nil
}

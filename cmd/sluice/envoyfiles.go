package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sluice-gateway/sluice/envoy"
)

// findFiles makes the names of the files that Envoy reads absolute, since it may be started elsewhere, and reports those
// that it could not use: Envoy would, but later, and without the flag's name.
func findFiles(o *envoy.Options) error {
	var f finder
	if c := o.Certificate; c != nil {
		f.pair("--tls-cert", &c.CertFile, "--tls-key", &c.KeyFile)
	}
	if t := o.Picker.TLS; t != nil {
		f.authorities("--picker-ca", &t.CAFile)
		f.pair("--picker-cert", &t.CertFile, "--picker-key", &t.KeyFile)
	}
	for _, p := range o.Pools {
		for _, e := range p.Endpoints {
			if e.TLS != nil && !e.TLS.InsecureSkipVerify {
				f.authorities("caFile of endpoint "+e.Host, &e.TLS.CAFile)
			}
		}
	}
	if o.RootsFile != envoy.DefaultRootsFile || needsRoots(o) {
		f.authorities("--tls-roots", &o.RootsFile)
	}
	return errors.Join(f.faults...)
}

// finder finds files and keeps what is wrong with them.
type finder struct{ faults []error }

// find makes the name of a file absolute, and says whether there is such a file.
func (f *finder) find(flag string, path *string) bool {
	if *path == "" {
		return false
	}
	absolute, err := filepath.Abs(*path)
	if err == nil {
		var info fs.FileInfo
		if info, err = os.Stat(absolute); err == nil && info.IsDir() {
			err = errors.New("it is a folder")
		}
	}
	if err != nil {
		f.faults = append(f.faults, fmt.Errorf("cannot use %s %q, which Envoy is to read: %w", flag, *path, err))
		return false
	}
	*path = absolute
	return true
}

func (f *finder) authorities(flag string, path *string) {
	if f.find(flag, path) {
		f.faults = append(f.faults, checkAuthorities(flag, *path))
	}
}

func (f *finder) pair(certFlag string, cert *string, keyFlag string, key *string) {
	foundCert, foundKey := f.find(certFlag, cert), f.find(keyFlag, key)
	if foundCert && foundKey {
		f.faults = append(f.faults, checkPair(certFlag, *cert, keyFlag, *key))
	}
}

// needsRoots says whether Envoy checks any certificate against --tls-roots.
func needsRoots(o *envoy.Options) bool {
	unnamed := func(e envoy.Endpoint) bool { return e.TLS != nil && e.TLS.CAFile == "" && !e.TLS.InsecureSkipVerify }
	return o.JWT != nil || o.Picker.TLS != nil && o.Picker.TLS.CAFile == "" ||
		slices.ContainsFunc(o.Pools, func(p envoy.Pool) bool { return slices.ContainsFunc(p.Endpoints, unnamed) })
}

// checkAuthorities reports a file without a certificate. One that only Envoy may read is left to it.
func checkAuthorities(flag, path string) error {
	text, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrPermission):
		return nil
	case err != nil:
		return fmt.Errorf("cannot use %s: %w", flag, err)
	case !x509.NewCertPool().AppendCertsFromPEM(text):
		return fmt.Errorf("cannot use %s %q: there is no certificate in it", flag, path)
	}
	return nil
}

// checkPair reports a certificate and a key that don't belong together. A key that only Envoy may read is left to it.
func checkPair(certFlag, cert, keyFlag, key string) error {
	if _, err := tls.LoadX509KeyPair(cert, key); err != nil && !errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("cannot use %s %q with %s %q: %w", certFlag, cert, keyFlag, key, err)
	}
	return nil
}

// checkOutput reports a name under which Envoy would not read what is written: it goes by the name's end, and takes what
// it doesn't know for JSON.
func checkOutput(path string) error {
	if path == "" || strings.EqualFold(filepath.Ext(path), ".yaml") || strings.EqualFold(filepath.Ext(path), ".yml") {
		return nil
	}
	return fmt.Errorf("cannot use --out %q: Envoy knows by a name that ends in .yaml or .yml that it reads YAML, and would refuse this one; without --out it goes to standard output", path)
}

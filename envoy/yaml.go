package envoy

import (
	"fmt"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"sigs.k8s.io/yaml"
)

// YAML writes a message as Envoy reads it, below lines of comment. Equal messages are written by equal bytes.
func YAML(m proto.Message, comment ...string) ([]byte, error) {
	text, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("cannot write %s: %w", m.ProtoReflect().Descriptor().FullName(), err)
	}
	body, err := yaml.JSONToYAML(text)
	if err != nil {
		return nil, fmt.Errorf("cannot write %s: %w", m.ProtoReflect().Descriptor().FullName(), err)
	}
	var out strings.Builder
	for _, line := range comment {
		fmt.Fprintln(&out, strings.TrimRight("# "+strings.ReplaceAll(line, "\n", " "), " "))
	}
	out.Write(body)
	return []byte(out.String()), nil
}

// SDSResource is what the file at Certificate.SDSFile has to hold: it names the certificate's files and has them watched,
// so that a renewed certificate is taken over when it is moved to its place.
func SDSResource(c Certificate) (*discoveryv3.DiscoveryResponse, error) {
	secret := &tlsv3.Secret{Name: certificate, Type: &tlsv3.Secret_TlsCertificate{TlsCertificate: &tlsv3.TlsCertificate{
		CertificateChain: file(c.CertFile), PrivateKey: file(c.KeyFile), WatchedDirectory: &corev3.WatchedDirectory{Path: folder(c.CertFile).Path}}}}
	packed, err := anypb.New(secret)
	if err != nil {
		return nil, fmt.Errorf("cannot write the secret: %w", err)
	}
	return &discoveryv3.DiscoveryResponse{Resources: []*anypb.Any{packed}}, nil
}

// About says, for whoever opens the file, what a bootstrap of these options does.
func About(o Options) []string {
	o = o.withDefaults()
	lines := []string{
		"Envoy as the front door of an inference gateway, written by `sluice envoy`: write it anew rather than change it.",
		"Try it with: envoy --mode validate -c FILE",
		fmt.Sprintf("Each request is shown to the picker at %s, which also tells of the pools' endpoints as they come and go.", o.Picker.Address),
	}
	switch {
	case o.FailureMode == FailOpen:
		lines = append(lines, "While it can't be asked, requests go to the configured endpoints in turn.")
	default:
		lines = append(lines, "While it can't be asked, requests are answered 503.")
	}
	if o.Dynamic {
		lines = append(lines, "Listener, routes and clusters come from there, too: nothing is served before it has been heard.")
	}
	return lines
}

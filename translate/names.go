package translate

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"github.com/sluice-gateway/sluice/api/v1alpha1"
)

// Labels and annotations of what is planned. LabelConfig and LabelConfigNamespace find everything of one configuration,
// also in other namespaces, where nothing is collected with its owner; a label's value is bounded, so the whole name is
// an annotation.
const (
	LabelManagedBy       = "app.kubernetes.io/managed-by"
	ManagedBy            = "sluice"
	LabelConfig          = "gateway.sluice.dev/config"
	LabelConfigNamespace = "gateway.sluice.dev/config-namespace"
	LabelScheduler       = "gateway.sluice.dev/scheduler"
	AnnotationOwner      = "gateway.sluice.dev/owner"
	// AnnotationSelector is on a pool whose selector has terms that an InferencePool can't express: the whole selector, which
	// our pickers and extension server go by.
	AnnotationSelector = "gateway.sluice.dev/selector"
	// AnnotationAddresses is on a pool that has endpoints beside its pods: where Envoys reach them, as ADDRESS:PORT with blanks
	// between.
	AnnotationAddresses = "gateway.sluice.dev/addresses"
	// LabelNobody is on no pod: a pool that others would read too widely selects by it.
	LabelNobody = "gateway.sluice.dev/selected-by-annotation"

	// Controller is what the controller is called: its Deployment, its Lease, the label app of its pods.
	Controller = "inference-gateway-controller"

	labelApp          = "app"
	labelEnvoyGateway = "gateway.envoyproxy.io/owning-gateway-name"
	labelEnvoyGwNs    = "gateway.envoyproxy.io/owning-gateway-namespace"
)

// maxLabel is the longest name of a Service, and the longest value of a label.
const maxLabel = 63

// label makes a name fit where 63 characters are allowed and the first one is a letter. Two names that are cut alike stay
// apart by a hash of the whole.
func label(name string) string {
	short := name
	if short[0] >= '0' && short[0] <= '9' {
		short = "s-" + short // a Service's name begins with a letter
	}
	if len(short) <= maxLabel && !strings.Contains(short, ".") {
		return short
	}
	sum := sha256.Sum256([]byte(name))
	hash := hex.EncodeToString(sum[:4])
	short = strings.ReplaceAll(short, ".", "-")
	short = short[:min(len(short), maxLabel-len(hash)-1)]
	return strings.TrimRight(short, "-") + "-" + hash
}

// AuthorityOf is the name of the Secret with the authority that signs a configuration's certificates. All of them are in the
// system namespace, so that it has both names of the configuration.
func AuthorityOf(config *v1alpha1.InferenceGatewayConfig) string {
	return label(config.Namespace + "." + config.Name + ".authority")
}

// EnvoySecret is the name of the Secret, in the system namespace, with the certificate that Envoys show a configuration's
// pickers, and the authority that signed theirs.
func EnvoySecret(config string) string { return secretOf(config + "-envoy") }

// PickerHosts are the names that certificates of those who may pick for a scheduler are made out to, in any topology.
func PickerHosts(namespace, config, scheduler string) []string {
	return []string{pickerOf(config) + "." + namespace + ".svc", schedulerOf(scheduler) + "." + namespace + ".svc"}
}

// Names of what is planned for a configuration, and for a scheduler. Those that people type are the reference's.
func pickerOf(config string) string    { return label(config + "-picker") }
func routerOf(config string) string    { return label(config + "-bbr") }
func embeddedOf(config string) string  { return label(config + "-gateway") }
func schedulerOf(sched string) string  { return label(sched + "-epp") }
func podsOf(workload string) string    { return label(workload + "-pods") }
func secretOf(workload string) string  { return label(workload + "-tls") }
func caOf(workload string) string      { return label(workload + "-ca") }
func selectOf(config string) string    { return config + "-select" }
func healthOf(config string) string    { return config + "-health" }
func unmatchedOf(config string) string { return config + "-unmatched" }

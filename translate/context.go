package translate

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-gateway/sluice/api/v1alpha1"
	"github.com/sluice-gateway/sluice/api/v1alpha2"
)

// Context is what a plan depends on beside the document: how the controller was installed, and what is there in the
// cluster. Nothing is written to it.
type Context struct {
	// Settings are the installation's.
	Settings Settings `json:"settings"`
	// Definitions are the kinds that the API server knows, as KIND.GROUP/VERSION, of those that not every cluster has. What
	// needs one that isn't here is not planned, and a condition says who brings it.
	Definitions []string `json:"definitions,omitempty"`
	// Policies are the GatewayPolicies of the document's namespace, Endpoints its lists of addresses, Adapters its ConfigMaps that
	// list adapters, Rewrites its InferenceModelRewrites, Objectives its InferenceObjectives. Addresses of lists are in the form that
	// compares equal: IP addresses in their shortest, names in small letters. Documents that package config would refuse are left out
	// by whoever fills this in, since one bad rule must not keep a gateway from everything else.
	Policies   []v1alpha1.GatewayPolicy         `json:"policies,omitempty"`
	Endpoints  []v1alpha1.Endpoints             `json:"endpoints,omitempty"`
	Adapters   []corev1.ConfigMap               `json:"adapters,omitempty"`
	Rewrites   []v1alpha2.InferenceModelRewrite `json:"rewrites,omitempty"`
	Objectives []v1alpha2.InferenceObjective    `json:"objectives,omitempty"`
	// Services are those in the document's namespace.
	Services []Service `json:"services,omitempty"`
	// Owned are objects with names that the plan might use, and whose they are.
	Owned []Owned `json:"owned,omitempty"`
	// Pods are those of the document's namespace, as far as any scheduler could mean them.
	Pods []Pod `json:"pods,omitempty"`
	// Addresses are what pickers know of those of Endpoints, by Name as ADDRESS:PORT. One that isn't here nobody has said anything of.
	Addresses []Pod `json:"addresses,omitempty"`
	// Rollouts are the Deployments that an earlier plan made.
	Rollouts []Rollout `json:"rollouts,omitempty"`
	// Gateway is what the data plane says of the Gateway, nil before there is one.
	Gateway *GatewayState `json:"gateway,omitempty"`
	// ClassFault is a whole sentence about the GatewayClass where it is not as Settings want it, empty where it is.
	ClassFault string `json:"classFault,omitempty"`
	// Issued is when the certificate for clients was, nil before.
	Issued *metav1.Time `json:"issued,omitempty"`
	// Refused is what the API server would not take of an earlier plan.
	Refused []Refusal `json:"refused,omitempty"`
	// Unread are whole sentences about what could not be read of the above for want of a right, PodsUnread the one about pods:
	// then nobody knows which there are. LeftOut are those about documents that were left out, Misheard those about annotations by
	// which pods say something of themselves that can't be used.
	Unread     []string `json:"unread,omitempty"`
	PodsUnread string   `json:"podsUnread,omitempty"`
	LeftOut    []string `json:"leftOut,omitempty"`
	Misheard   []string `json:"misheard,omitempty"`
}

// Settings are the installation's: what its chart says, not what a user asks of one gateway.
type Settings struct {
	// SystemNamespace is where Gateways and body-based routers live, EnvoyNamespace where Envoys run.
	SystemNamespace string `json:"systemNamespace,omitempty"`
	EnvoyNamespace  string `json:"envoyNamespace,omitempty"`
	// GatewayClass is the class of Gateways; Extension says that the Envoy Gateway of this class asks our extension server.
	GatewayClass string `json:"gatewayClass,omitempty"`
	Extension    bool   `json:"extension,omitempty"`
	// Image is that of this program, EnvoyImage that of Envoy; empty for Envoy Gateway's own choice.
	Image      string `json:"image"`
	EnvoyImage string `json:"envoyImage,omitempty"`
	// PullSecrets are the names of Secrets by which images are fetched, in the namespaces of the pods.
	PullSecrets []string `json:"pullSecrets,omitempty"`
	// EnvoyReplicas counts Envoys.
	EnvoyReplicas int32 `json:"envoyReplicas,omitempty"`
	// ServiceType and ServiceAnnotations shape the Service that clients reach.
	ServiceType        corev1.ServiceType `json:"serviceType,omitempty"`
	ServiceAnnotations map[string]string  `json:"serviceAnnotations,omitempty"`
	// MetricsNamespaces are where readers of metrics run.
	MetricsNamespaces []string `json:"metricsNamespaces,omitempty"`
	// Issuer is the ClusterIssuer of cert-manager that signs certificates for clients; empty for none.
	Issuer string `json:"issuer,omitempty"`
}

// Defaults of Settings, the reference's names where it has them.
const (
	DefaultSystemNamespace = "hyperpod-inference-system"
	DefaultGatewayClass    = "inference-gateway"
	DefaultEnvoyReplicas   = 2
)

// Owned is an object by name, and the configuration it belongs to, as NAMESPACE/NAME; empty for someone else's.
type Owned struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Owner     string `json:"owner,omitempty"`
}

// Pod is a pod that may be a model server's, or an address that is one's, and what is known of it.
type Pod struct {
	Name        string            `json:"name"`
	Labels      map[string]string `json:"labels,omitempty"`
	Ready       bool              `json:"ready,omitempty"`
	Terminating bool              `json:"terminating,omitempty"`
	// Drain: it says of itself that it gets nothing new.
	Drain bool `json:"drain,omitempty"`
	// Tried is what came of pickers' last looks at it, one for each scheduler that has it as an endpoint.
	Tried []Try `json:"tried,omitempty"`
}

// Service is one, and the ports where it takes TCP.
type Service struct {
	Name  string  `json:"name"`
	Ports []int32 `json:"ports,omitempty"`
}

// Try is what came of a picker's look at an endpoint of a scheduler.
type Try struct {
	Scheduler string `json:"scheduler"`
	// Port is where it looked, 0 for an address, which has its own.
	Port int32 `json:"port,omitempty"`
	// Metrics says whether its metrics were read: nil when nobody has looked.
	Metrics *bool `json:"metrics,omitempty"`
	// Missing are the names of metrics that its page lacks and routing would go by.
	Missing []string `json:"missing,omitempty"`
	// Models are those that it says it serves, nil when it was not asked.
	Models []string `json:"models,omitempty"`
	// Why says why it reaches nothing there, empty where it does. Lasts: so it was at the look before, too.
	Why   string `json:"why,omitempty"`
	Lasts bool   `json:"lasts,omitempty"`
}

// tried is what came of the look at it for a scheduler, nothing where nobody has looked.
func (p *Pod) tried(scheduler string) Try {
	for _, t := range p.Tried {
		if t.Scheduler == scheduler {
			return t
		}
	}
	return Try{}
}

// Rollout is how far a Deployment has come.
type Rollout struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Observed: the numbers speak of the Deployment as it is written.
	Observed  bool  `json:"observed,omitempty"`
	Wanted    int32 `json:"wanted"`
	Updated   int32 `json:"updated"`
	Available int32 `json:"available"`
	// Complete: all copies were new and available once. Stuck says why it goes no further, empty while it does.
	Complete bool   `json:"complete,omitempty"`
	Stuck    string `json:"stuck,omitempty"`
}

// GatewayState is what the data plane says of the Gateway.
type GatewayState struct {
	Programmed bool `json:"programmed,omitempty"`
	// Message is its own, for people.
	Message string `json:"message,omitempty"`
}

// Refusal is an object that the API server would not take, and what it said.
type Refusal struct {
	Object  string `json:"object"`
	Message string `json:"message"`
}

// withDefaults are the settings with what was left out.
func (s Settings) withDefaults() Settings {
	if s.SystemNamespace == "" {
		s.SystemNamespace = DefaultSystemNamespace
	}
	if s.EnvoyNamespace == "" {
		s.EnvoyNamespace = s.SystemNamespace
	}
	if s.GatewayClass == "" {
		s.GatewayClass = DefaultGatewayClass
	}
	if s.EnvoyReplicas == 0 {
		s.EnvoyReplicas = DefaultEnvoyReplicas
	}
	if s.ServiceType == "" {
		s.ServiceType = corev1.ServiceTypeLoadBalancer
	}
	if s.MetricsNamespaces == nil {
		s.MetricsNamespaces = []string{s.SystemNamespace}
	}
	return s
}

// knows reports whether the API server has a kind, as KIND.GROUP/VERSION.
func (c *Context) knows(kind string) bool { return slices.Contains(c.Definitions, kind) }

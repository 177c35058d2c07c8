package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Endpoints lists model servers by address: where there are no pods, as on a laptop, a virtual machine or in a container, and
// those outside a cluster. A scheduler's modelSelector selects among the entries of every Endpoints document.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=endpoints,singular=endpoints,shortName=gwep,categories=sluice,scope=Namespaced
// +kubebuilder:printcolumn:name="FIRST",type=string,JSONPath=`.spec.endpoints[0].address`,description="The first address."
// +kubebuilder:printcolumn:name="AGE",type=date,JSONPath=`.metadata.creationTimestamp`
type Endpoints struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is the list.
	// +required
	Spec EndpointsSpec `json:"spec"`
}

// EndpointsList is what an API server returns for several.
//
// +kubebuilder:object:root=true
type EndpointsList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []Endpoints `json:"items"`
}

// EndpointsSpec is the list, and what its entries have in common.
//
// +kubebuilder:validation:XValidation:rule="!has(self.kvEvents) || self.kvEvents.port == 0 || self.endpoints.all(e, !has(e.ranks) || has(e.kvEvents) || (self.kvEvents.port > self.kvEvents.replayPort ? self.kvEvents.port : self.kvEvents.replayPort) + (has(e.firstRank) ? e.firstRank : 0) + e.ranks <= 65536)",message="needs ports over 65535: the last rank's are those of kvEvents plus its number",fieldPath=".endpoints"
// +kubebuilder:validation:XValidation:rule="!has(self.kvEvents) || self.kvEvents.port == 0 || self.kvEvents.replayPort == 0 || self.endpoints.all(e, !has(e.ranks) || has(e.kvEvents) || self.kvEvents.port - self.kvEvents.replayPort >= e.ranks || self.kvEvents.replayPort - self.kvEvents.port >= e.ranks)",message="makes ports overlap, because each rank's are those of kvEvents plus its number: set kvEvents.replayPort further from port, here and at the engine",fieldPath=".endpoints"
type EndpointsSpec struct {
	// Labels are given to every entry; an entry's own label of the same name wins.
	// +optional
	Labels map[string]string `json:"labels,omitempty"`
	// KVEvents holds for every entry; an entry's own wins as a whole.
	// +optional
	KVEvents *EndpointKVEvents `json:"kvEvents,omitempty"`
	// Endpoints are the addresses.
	// +required
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=2048
	Endpoints []EndpointEntry `json:"endpoints"`
}

// EngineKind names a model server.
// +kubebuilder:validation:Enum=vllm;sglang;tgi;llamacpp;trtllm;triton;generic
type EngineKind string

// The engines whose metrics are understood; generic is any other server that speaks the OpenAI API, routed by what the
// gateway itself counts.
const (
	EngineVLLM     EngineKind = "vllm"
	EngineSGLang   EngineKind = "sglang"
	EngineTGI      EngineKind = "tgi"
	EngineLlamaCPP EngineKind = "llamacpp"
	EngineTRTLLM   EngineKind = "trtllm"
	EngineTriton   EngineKind = "triton"
	EngineGeneric  EngineKind = "generic"
)

// EndpointEntry is one address. A name that resolves to several addresses is several endpoints with the same labels.
//
// +kubebuilder:validation:XValidation:rule="!has(self.firstRank) || has(self.ranks)",message="how many ranks the address has, because firstRank is set",reason=FieldValueRequired,fieldPath=".ranks"
// +kubebuilder:validation:XValidation:rule="!has(self.firstRank) || self.firstRank == 0 || !has(self.ranks) || has(self.engine)",message="which engine it is, because firstRank is set: vllm counts ranks in requests from 0 at each address, sglang over all",reason=FieldValueRequired,fieldPath=".engine"
// +kubebuilder:validation:XValidation:rule="!has(self.ranks) || !has(self.kvEvents) || self.kvEvents.port == 0 || (self.kvEvents.port > self.kvEvents.replayPort ? self.kvEvents.port : self.kvEvents.replayPort) + (has(self.firstRank) ? self.firstRank : 0) + self.ranks <= 65536",message="needs ports over 65535: the last rank's are those of kvEvents plus its number",fieldPath=".ranks"
// +kubebuilder:validation:XValidation:rule="!has(self.ranks) || !has(self.kvEvents) || self.kvEvents.port == 0 || self.kvEvents.replayPort == 0 || self.kvEvents.port - self.kvEvents.replayPort >= self.ranks || self.kvEvents.replayPort - self.kvEvents.port >= self.ranks",message="makes ports overlap, because each rank's are those of kvEvents plus its number: set kvEvents.replayPort further from port, here and at the engine",fieldPath=".ranks"
type EndpointEntry struct {
	// Address is host, host:port, [IPv6] or [IPv6]:port; host is an IP address or a name, resolved again and again.
	// Without a port the scheduler's targetPort holds.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=260
	// +kubebuilder:validation:XValidation:rule="self.matches('^(\\\\[[0-9A-Fa-f.]*:[0-9A-Fa-f:.]*(%[^\\\\]]+)?\\\\]|([A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?\\\\.)*[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?\\\\.?)(:[0-9]+)?$')",message="must be HOST, HOST:PORT, [IPv6] or [IPv6]:PORT"
	// +kubebuilder:validation:XValidation:rule="!self.matches('[^:]:[0-9]+$|\\\\]:[0-9]+$') || self.matches(':0*([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])$')",message="must have a port from 1 to 65535"
	// +kubebuilder:validation:XValidation:rule="!self.startsWith('[') || self.startsWith('[::ffff:') || isIP(self.split(']')[0].replace('[', '').split('%')[0])",message="must have an IPv6 address between its brackets"
	// +kubebuilder:validation:XValidation:rule="self.startsWith('[') || !self.split(':')[0].matches('(^|\\\\.)([0-9]+|0[xX][0-9a-fA-F]*)\\\\.?$') || isIP(self.split(':')[0])",message="ends in a number as an IP address does, and is none"
	// +kubebuilder:validation:XValidation:rule="!self.matches('^(0\\\\.0\\\\.0\\\\.0|\\\\[[0:]+\\\\])(:[0-9]+)?$')",message="is the address of no machine in particular: endpoints need one that can be reached"
	Address string `json:"address"`
	// Labels are what modelSelector selects on. The label gpu, or else the one of GPU discovery,
	// nvidia.com/gpu.product, names the kind of GPU, and "tp" how many share the model; endpoints of one kind share what is
	// learned of their speed.
	// +optional
	Labels map[string]string `json:"labels,omitempty"`
	// Drain keeps new requests away and lets those under way finish.
	// +optional
	Drain bool `json:"drain,omitempty"`
	// Engine is found by asking where it is not set.
	// +optional
	Engine EngineKind `json:"engine,omitempty"`
	// Metrics says where the engine's metrics are read, where that isn't where its kind has them.
	// +optional
	Metrics *EndpointMetrics `json:"metrics,omitempty"`
	// KVEvents, even empty, means that the engine publishes what its KV cache holds.
	// +optional
	KVEvents *EndpointKVEvents `json:"kvEvents,omitempty"`
	// Ranks is how many data-parallel ranks the address has. Each is an endpoint of its own, named by a header.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1024
	Ranks *int32 `json:"ranks,omitempty"`
	// FirstRank is the number of the first of them in the whole deployment, 0 if not set.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=65535
	FirstRank *int32 `json:"firstRank,omitempty"`
	// TLS, even empty, means that the endpoint is reached by https.
	// +optional
	TLS *EndpointTLS `json:"tls,omitempty"`
	// APIKey is sent to the engine as a bearer token.
	// +optional
	APIKey *APIKeySource `json:"apiKey,omitempty"`
}

// EndpointMetrics says where an engine's metrics are read, where that isn't where its kind has them.
type EndpointMetrics struct {
	// Path is the page, /metrics for most engines.
	// +optional
	// +kubebuilder:validation:Pattern=`^($|/)`
	Path string `json:"path,omitempty"`
	// Port is the port of the page, where it is not that of the address.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port *int32 `json:"port,omitempty"`
}

// EndpointKVEvents says where an engine publishes what its KV cache holds (vLLM's and SGLang's --kv-events-config). Of
// an address with ranks, each rank's ports are these plus the rank's number.
//
// +kubebuilder:validation:XValidation:rule="self.port == 0 || self.port != self.replayPort",message="must be another port than the one of the events",fieldPath=".replayPort"
// +kubebuilder:validation:XValidation:rule="self.port != 0 || self.replayPort == 0 || self.replayPort == 5558",message="has no effect when port is 0, which says that the engine publishes nothing: remove it, or set port",fieldPath=".replayPort"
type EndpointKVEvents struct {
	// Port is where the engine publishes; 0 means that it doesn't.
	// +optional
	// +kubebuilder:default=5557
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=65535
	Port *int32 `json:"port,omitempty"`
	// ReplayPort is where the engine gives messages again; 0 means that it doesn't.
	// +optional
	// +kubebuilder:default=5558
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=65535
	ReplayPort *int32 `json:"replayPort,omitempty"`
	// Topic is what the topics of messages begin with; empty for all.
	// +optional
	Topic string `json:"topic,omitempty"`
	// HashSeed is the engine's PYTHONHASHSEED, where it is none of those that are tried.
	// +optional
	HashSeed string `json:"hashSeed,omitempty"`
}

// EndpointTLS says how an engine's certificate is checked. Empty: against the system's authorities and the name in the
// address.
//
// +kubebuilder:validation:XValidation:rule="!(has(self.insecureSkipVerify) && self.insecureSkipVerify && has(self.caFile) && size(self.caFile) > 0)",message="has no effect when insecureSkipVerify is true: remove one of the two",fieldPath=".caFile"
type EndpointTLS struct {
	// CAFile is a file of PEM certificates to trust instead of the system's.
	// +optional
	CAFile string `json:"caFile,omitempty"`
	// ServerName is the name to check, where it isn't the one in the address.
	// +optional
	ServerName string `json:"serverName,omitempty"`
	// InsecureSkipVerify takes any certificate.
	// +optional
	InsecureSkipVerify bool `json:"insecureSkipVerify,omitempty"`
}

// APIKeySource says where a key is kept. A key is never written into a document.
//
// +kubebuilder:validation:XValidation:rule="(has(self.env) && size(self.env) > 0) != (has(self.file) && size(self.file) > 0)",message="exactly one of env or file must be set"
// +kubebuilder:validation:XValidation:rule="!has(self.env) || size(self.env) == 0 || self.env.matches('^[A-Za-z_][A-Za-z0-9_]*$')",message="must be the name of an environment variable, never the key itself",fieldPath=".env"
type APIKeySource struct {
	// Env names an environment variable of the gateway's process.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Env string `json:"env,omitempty"`
	// File is a path that the gateway's process can read.
	// +optional
	// +kubebuilder:validation:MaxLength=4096
	File string `json:"file,omitempty"`
}

package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Endpoints lists model servers by address, for gateways that run where there are no pods: a laptop, a virtual machine,
// a container. A scheduler's modelSelector selects among the entries of every Endpoints document.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=endpoints,singular=endpoints,scope=Namespaced
type Endpoints struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec EndpointsSpec `json:"spec"`
}

// EndpointsSpec is the list, and what its entries have in common.
type EndpointsSpec struct {
	// Labels are given to every entry; an entry's own label of the same name wins.
	// +optional
	Labels map[string]string `json:"labels,omitempty"`
	// KVEvents holds for every entry; an entry's own wins as a whole.
	// +optional
	KVEvents *EndpointKVEvents `json:"kvEvents,omitempty"`
	// +required
	// +kubebuilder:validation:MinItems=1
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
type EndpointEntry struct {
	// Address is host, host:port, [IPv6] or [IPv6]:port; host is an IP address or a name, resolved again and again.
	// Without a port the scheduler's targetPort holds.
	// +required
	// +kubebuilder:validation:MinLength=1
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
	// +kubebuilder:validation:Pattern=`^/`
	Path string `json:"path,omitempty"`
	// Port is the port of the page, where it is not that of the address.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port *int32 `json:"port,omitempty"`
}

// EndpointKVEvents says where an engine publishes what its KV cache holds (vLLM's and SGLang's --kv-events-config). Of
// an address with ranks, each rank's ports are these plus the rank's number.
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
// +kubebuilder:validation:XValidation:rule="!(has(self.insecureSkipVerify) && self.insecureSkipVerify && has(self.caFile))",message="caFile has no effect when insecureSkipVerify is true"
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
// +kubebuilder:validation:XValidation:rule="has(self.env) != has(self.file)",message="exactly one of env or file must be set"
type APIKeySource struct {
	// Env names an environment variable of the gateway's process.
	// +optional
	Env string `json:"env,omitempty"`
	// File is a path that the gateway's process can read.
	// +optional
	File string `json:"file,omitempty"`
}

package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// InferenceGatewayConfig describes one gateway: the models it serves, how a request finds its model and how a model's
// requests find their endpoint.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=inferencegatewayconfigs,singular=inferencegatewayconfig,shortName=igwc,categories=sluice,scope=Namespaced
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="READY",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`,description="Whether requests can be served, as the reference says it."
// +kubebuilder:printcolumn:name="SERVING",type=string,JSONPath=`.status.conditions[?(@.type=="Serving")].status`,description="Whether every model has an endpoint that answers."
// +kubebuilder:printcolumn:name="REASON",type=string,JSONPath=`.status.conditions[?(@.type=="Serving")].reason`,description="Why SERVING is what it is."
// +kubebuilder:printcolumn:name="GLOBAL-ROUTING",type=string,JSONPath=`.status.conditions[?(@.type=="GlobalRouting")].reason`,description="Ready when the cluster can serve as a member of a global gateway; empty while no global gateway has it."
// +kubebuilder:printcolumn:name="ACCEPTED",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Accepted")].status`,description="Whether nothing contradicts the document."
// +kubebuilder:printcolumn:name="PROGRAMMED",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="GatewayProgrammed")].status`,description="Whether the data plane runs this configuration."
// +kubebuilder:printcolumn:name="BBR",type=boolean,priority=1,JSONPath=`.spec.bbr.enabled`,description="Whether the model in a request's body chooses the scheduler."
// +kubebuilder:printcolumn:name="AGE",type=date,JSONPath=`.metadata.creationTimestamp`
type InferenceGatewayConfig struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is what is asked of the gateway.
	// +required
	Spec InferenceGatewayConfigSpec `json:"spec"`
	// Status is written by the controller and ignored in documents.
	// +optional
	Status InferenceGatewayConfigStatus `json:"status,omitempty,omitzero"`
}

// InferenceGatewayConfigList is what an API server returns for several.
//
// +kubebuilder:object:root=true
type InferenceGatewayConfigList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []InferenceGatewayConfig `json:"items"`
}

// InferenceGatewayConfigSpec is what a user asks of a gateway.
//
// +kubebuilder:validation:XValidation:rule="size(self.schedulers) <= 1 || self.bbr.enabled",message="bbr must be enabled when more than one scheduler is defined",fieldPath=".bbr.enabled"
// +kubebuilder:validation:XValidation:rule="self.schedulers.all(a, self.schedulers.exists_one(b, b.modelName == a.modelName))",message="modelName must be unique across schedulers",fieldPath=".schedulers"
type InferenceGatewayConfigSpec struct {
	// BBR is the body-based router, which finds the model in a request's body.
	// +required
	BBR BBR `json:"bbr"`
	// TLS says how the gateway's own listener gets its certificate. Absent: no HTTPS.
	// +optional
	TLS *TLS `json:"tls,omitempty"`
	// Auth says who may call. Absent: everyone who reaches the gateway.
	// +optional
	Auth *Auth `json:"auth,omitempty"`
	// Observability says what the gateway tells of itself.
	// +optional
	Observability *Observability `json:"observability,omitempty"`
	// PodDefaults shapes the pods of the body-based router and of the pickers.
	// +optional
	PodDefaults *PodDefaults `json:"podDefaults,omitempty"`
	// Schedulers lists the models: each entry is one pool and its picker.
	// +required
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=100
	Schedulers []Scheduler `json:"schedulers"`
}

// BBR is the body-based router.
type BBR struct {
	// Enabled chooses the pool by the body's model. Off: everything goes to the one scheduler. A document has to
	// say which.
	// +required
	Enabled *bool `json:"enabled"`
	// Replicas is how many pods the body-based router has.
	// +optional
	// +kubebuilder:default=2
	// +kubebuilder:validation:Minimum=1
	Replicas *int32 `json:"replicas,omitempty"`
	// DefaultBackend receives what matches no scheduler. Absent: such requests are answered 404.
	// +optional
	DefaultBackend *DefaultBackend `json:"defaultBackend,omitempty"`
	// MaxRequestBodyBytes is the longest body taken in; a longer one is answered 413.
	// +optional
	// +kubebuilder:default=268435456
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=268435456
	MaxRequestBodyBytes *int64 `json:"maxRequestBodyBytes,omitempty"`
}

// DefaultBackend is a service by name: in a cluster a Service of the config's namespace, elsewhere a host name to
// resolve.
type DefaultBackend struct {
	// Name is the name of the service.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`
	Name string `json:"name"`
	// Port is the service's port.
	// +optional
	// +kubebuilder:default=8000
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port *int32 `json:"port,omitempty"`
}

// TLS says where the gateway's certificate comes from.
type TLS struct {
	// ACMArn names a certificate in ACM. Empty asks cert-manager for one.
	// +optional
	ACMArn *string `json:"acmArn,omitempty"`
}

// Auth says who may call.
type Auth struct {
	// JWT asks for a signed token on every request but health checks.
	// +required
	JWT *JWT `json:"jwt"`
}

// JWT asks for a signed token on every request but health checks.
type JWT struct {
	// Provider is who signs tokens, and what they must hold.
	// +required
	Provider JWTProvider `json:"provider"`
}

// JWTProvider is who signs tokens and what they must hold.
//
// +kubebuilder:validation:XValidation:rule="(has(self.audiences) && size(self.audiences) > 0) || (has(self.requiredClaims) && size(self.requiredClaims) > 0)",message="at least one of audiences or requiredClaims must be set"
type JWTProvider struct {
	// Name is the provider's name, for messages.
	// +required
	// +kubebuilder:validation:MinLength=1
	Name string `json:"name"`
	// Issuer is compared with the token's iss.
	// +required
	// +kubebuilder:validation:Pattern=`^https://[^/?#\s]+([/?#]\S*)?$`
	Issuer string `json:"issuer"`
	// RemoteJWKS is where the provider publishes its keys.
	// +required
	RemoteJWKS RemoteJWKS `json:"remoteJWKS"`
	// Audiences: a token must be meant for at least one.
	// +optional
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MinLength=1
	Audiences []string `json:"audiences,omitempty"`
	// RequiredClaims: a token must satisfy every one; with any set, the rest is denied.
	// +optional
	// +kubebuilder:validation:MaxItems=16
	RequiredClaims []RequiredClaim `json:"requiredClaims,omitempty"`
}

// RemoteJWKS is where the provider publishes its keys.
type RemoteJWKS struct {
	// URI is where its keys are fetched.
	// +required
	// +kubebuilder:validation:Pattern=`^https://[^/?#\s]+([/?#]\S*)?$`
	URI string `json:"uri"`
}

// ClaimType says how a claim's value is read.
// +kubebuilder:validation:Enum=String;StringArray
type ClaimType string

// The two readings of a claim: one string, or a list of which one must match.
const (
	ClaimString      ClaimType = "String"
	ClaimStringArray ClaimType = "StringArray"
)

// RequiredClaim is a claim and the values it may have.
type RequiredClaim struct {
	// Name is the claim's name.
	// +required
	// +kubebuilder:validation:MinLength=1
	Name string `json:"name"`
	// ValueType is String where it is not set.
	// +optional
	// +kubebuilder:default=String
	ValueType ClaimType `json:"valueType,omitempty"`
	// Values are those that the claim may have.
	// +required
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=128
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=1024
	Values []string `json:"values"`
}

// Observability says what the gateway tells of itself.
type Observability struct {
	// Metrics adds a metrics collector beside the gateway's pods.
	// +optional
	Metrics *ObservabilityMetrics `json:"metrics,omitempty"`
}

// ObservabilityMetrics adds a metrics collector beside the gateway's pods.
type ObservabilityMetrics struct {
	// Enabled is true where it is not set.
	// +optional
	// +kubebuilder:default=true
	Enabled *bool `json:"enabled,omitempty"`
}

// PodDefaults applies to the pods of the body-based router and of the pickers, never to model servers.
type PodDefaults struct {
	// Resources are what a container asks for and may use.
	// +optional
	Resources *corev1.ResourceRequirements `json:"resources,omitempty"`
	// NodeSelector are labels that a node must have.
	// +optional
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`
	// Tolerations are taints of nodes that don't keep the pods away.
	// +optional
	Tolerations []corev1.Toleration `json:"tolerations,omitempty"`
	// Affinity says which nodes, and the company of which pods, are asked for or preferred.
	// +optional
	Affinity *corev1.Affinity `json:"affinity,omitempty"`
	// Labels are added to the pods.
	// +optional
	Labels map[string]string `json:"labels,omitempty"`
	// Annotations are added to the pods.
	// +optional
	Annotations map[string]string `json:"annotations,omitempty"`
	// Env are environment variables of the containers.
	// +optional
	Env []corev1.EnvVar `json:"env,omitempty"`
	// EnvFrom are ConfigMaps and Secrets whose entries become environment variables.
	// +optional
	EnvFrom []corev1.EnvFromSource `json:"envFrom,omitempty"`
}

// AppProtocol is what model servers speak.
// +kubebuilder:validation:Enum=http;kubernetes.io/h2c
type AppProtocol string

// The protocols of model servers: HTTP/1.1, or HTTP/2 without TLS.
const (
	AppProtocolHTTP AppProtocol = "http"
	AppProtocolH2C  AppProtocol = "kubernetes.io/h2c"
)

// PickerKind names an endpoint picker of the reference.
// +kubebuilder:validation:Enum=llm-d;epp
type PickerKind string

// The reference's two pickers. Sluice's own stands in for both.
const (
	PickerLLMD PickerKind = "llm-d"
	PickerEPP  PickerKind = "epp"
)

// EngineType says which metric names a scheduler's model servers use.
// +kubebuilder:validation:Enum=vllm;sglang
type EngineType string

// The engines a scheduler can name.
const (
	EngineTypeVLLM   EngineType = "vllm"
	EngineTypeSGLang EngineType = "sglang"
)

// Scheduler is one model: a pool of endpoints and how one of them is picked.
//
// +kubebuilder:validation:XValidation:rule="!(has(self.weights) && has(self.configMapRef))",message="weights and configMapRef are mutually exclusive"
// +kubebuilder:validation:XValidation:rule="!has(self.weights) || !has(self.weights.lru) || !has(self.scheduler) || self.scheduler == 'llm-d'",message="weights.lru is only supported when scheduler is llm-d"
type Scheduler struct {
	// Name becomes the name of the pool, the picker and the route.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Name string `json:"name"`
	// ModelName is compared with the body's model, byte for byte.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	ModelName string `json:"modelName"`
	// ModelSelector selects model servers by label. {} selects all of them.
	// +required
	ModelSelector *metav1.LabelSelector `json:"modelSelector"`
	// TargetPort is the port of endpoints whose address has none.
	// +optional
	// +kubebuilder:default=8000
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	TargetPort *int32 `json:"targetPort,omitempty"`
	// AppProtocol is what the model servers speak: HTTP/1.1, or HTTP/2 without TLS.
	// +optional
	// +kubebuilder:default=http
	AppProtocol AppProtocol `json:"appProtocol,omitempty"`
	// Scheduler names an endpoint picker of the reference.
	// +optional
	// +kubebuilder:default="llm-d"
	Scheduler PickerKind `json:"scheduler,omitempty"`
	// EngineType says which metric names the model servers use.
	// +optional
	// +kubebuilder:default=vllm
	EngineType EngineType `json:"engineType,omitempty"`
	// Weights routes by weighted scores; 0 switches a scorer off. Absent, with no configMapRef either: by least expected
	// latency.
	// +optional
	Weights *Weights `json:"weights,omitempty"`
	// ConfigMapRef names a whole picker configuration.
	// +optional
	ConfigMapRef *ConfigMapRef `json:"configMapRef,omitempty"`
	// Replicas is how many pods the picker has.
	// +optional
	// +kubebuilder:default=2
	// +kubebuilder:validation:Minimum=1
	Replicas *int32 `json:"replicas,omitempty"`
	// Env are environment variables of the picker's container.
	// +optional
	Env []corev1.EnvVar `json:"env,omitempty"`
	// EnvFrom are ConfigMaps and Secrets whose entries become environment variables of the picker's container.
	// +optional
	EnvFrom []corev1.EnvFromSource `json:"envFrom,omitempty"`
	// LoRAAdapters are names that the body's model may have for this base model.
	// +optional
	// +kubebuilder:validation:MaxItems=50
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=253
	LoRAAdapters []string `json:"loraAdapters,omitempty"`
	// RouteTimeout bounds a whole request. 0s lifts the bound.
	// +optional
	// +kubebuilder:validation:Pattern=`^([0-9]{1,5}(h|m|s|ms)){1,4}$`
	RouteTimeout *string `json:"routeTimeout,omitempty"`
	// LogLevel is how much the picker of the reference logs.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=5
	LogLevel *int32 `json:"logLevel,omitempty"`
}

// Weights says how much each scorer counts in an endpoint's total. A weight of 0 switches its scorer off.
type Weights struct {
	// Queue prefers endpoints with fewer waiting requests.
	// +optional
	// +kubebuilder:default=2
	// +kubebuilder:validation:Minimum=0
	Queue *int32 `json:"queue,omitempty"`
	// KVCache prefers endpoints with more of their KV cache free.
	// +optional
	// +kubebuilder:default=2
	// +kubebuilder:validation:Minimum=0
	KVCache *int32 `json:"kvCache,omitempty"`
	// Prefix prefers endpoints that hold more of the prompt's leading blocks.
	// +optional
	// +kubebuilder:default=3
	// +kubebuilder:validation:Minimum=0
	Prefix *int32 `json:"prefix,omitempty"`
	// LRU sends a prompt nobody holds to the endpoint that least recently got one.
	// +optional
	// +kubebuilder:validation:Minimum=0
	LRU *int32 `json:"lru,omitempty"`
	// LoRAAffinity prefers endpoints that have the adapter loaded.
	// +optional
	// +kubebuilder:validation:Minimum=0
	LoRAAffinity *int32 `json:"loraAffinity,omitempty"`
	// RunningRequests prefers endpoints that serve fewer requests.
	// +optional
	// +kubebuilder:validation:Minimum=0
	RunningRequests *int32 `json:"runningRequests,omitempty"`
	// PredictedLatency prefers endpoints expected to answer sooner.
	// +optional
	// +kubebuilder:validation:Minimum=0
	PredictedLatency *int32 `json:"predictedLatency,omitempty"`
}

// ConfigMapRef names a picker configuration kept in a ConfigMap of the same namespace.
type ConfigMapRef struct {
	// Name is the ConfigMap's name.
	// +required
	// +kubebuilder:validation:MinLength=1
	Name string `json:"name"`
	// Key is the entry that holds the configuration.
	// +optional
	// +kubebuilder:default="default-plugins.yaml"
	Key string `json:"key,omitempty"`
}

// Condition types of an InferenceGatewayConfig's status.
const (
	// ConditionAccepted: the document is valid and nothing contradicts it.
	ConditionAccepted = "Accepted"
	// ConditionReady: requests can be served.
	ConditionReady = "Ready"
	// ConditionGatewayProgrammed: the data plane runs this configuration.
	ConditionGatewayProgrammed = "GatewayProgrammed"
	// ConditionBBRReady: the body-based router runs, where it is enabled.
	ConditionBBRReady = "BBRReady"
	// ConditionAdmissionBlocked: an admission policy refuses generated objects.
	ConditionAdmissionBlocked = "AdmissionBlocked"
	// ConditionGlobalRouting: the gateway can serve as a member of a global gateway; its reason is then Ready. It is there only
	// where a global gateway has the gateway as a member.
	ConditionGlobalRouting = "GlobalRouting"
	// ConditionServing is Sluice's own: every model has an endpoint that answers, and requests reach it. Ready says what the
	// reference's says, which is true of a selector that matches nothing. A scheduler's is of its endpoints alone.
	ConditionServing = "Serving"
	// ConditionMetricsRead is Sluice's own: the metrics that routing goes by are there.
	ConditionMetricsRead = "MetricsRead"
	// ConditionHonoured is Sluice's own: everything the document asks for has its effect.
	ConditionHonoured = "Honoured"
)

// RolloutState is how far a scheduler's picker has come.
// +kubebuilder:validation:Enum=Pending;Progressing;Available;Degraded
type RolloutState string

// The states of a picker's rollout, in the order a healthy one passes them; Degraded is one that was available and has
// lost replicas.
const (
	RolloutPending     RolloutState = "Pending"
	RolloutProgressing RolloutState = "Progressing"
	RolloutAvailable   RolloutState = "Available"
	RolloutDegraded    RolloutState = "Degraded"
)

// InferenceGatewayConfigStatus is what the controller reports.
type InferenceGatewayConfigStatus struct {
	// Conditions are Accepted, Ready, GatewayProgrammed, BBRReady, AdmissionBlocked, Serving, MetricsRead and Honoured, and
	// GlobalRouting where a global gateway has this one as a member.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// Schedulers has an entry for each of the spec's.
	// +optional
	// +listType=map
	// +listMapKey=name
	Schedulers []SchedulerStatus `json:"schedulers,omitempty"`
	// ObservedGeneration is the generation that the rest of the status speaks of.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// TLS is the certificate in use.
	// +optional
	TLS *TLSStatus `json:"tls,omitempty"`
}

// SchedulerStatus is what the controller reports of one scheduler.
type SchedulerStatus struct {
	// Name is the scheduler's name.
	// +required
	Name string `json:"name"`
	// Conditions are what holds for this scheduler alone: Accepted, Serving, which is of its endpoints and not of what is on
	// the way to them, and MetricsRead.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// CurrentScheduler is the picker that runs; it differs from the one asked for until a rollout ends.
	// +optional
	CurrentScheduler PickerKind `json:"currentScheduler,omitempty"`
	// RolloutState is how far the picker has come.
	// +optional
	RolloutState RolloutState `json:"rolloutState,omitempty"`
}

// TLSStatus is the certificate in use.
type TLSStatus struct {
	// ACMArn is the certificate's name in ACM.
	// +optional
	ACMArn string `json:"acmArn,omitempty"`
	// IssuedAt is when it was issued.
	// +optional
	IssuedAt *metav1.Time `json:"issuedAt,omitempty"`
	// DNSNames are the names it is for.
	// +optional
	DNSNames []string `json:"dnsNames,omitempty"`
}

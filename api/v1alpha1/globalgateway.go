package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// GlobalGateway is one address in front of the gateways of several clusters, its members.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=globalgateways,singular=globalgateway,shortName=ggw,categories=sluice,scope=Namespaced
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="READY",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`,description="Whether requests can be sent to some member."
// +kubebuilder:printcolumn:name="SERVING",type=string,JSONPath=`.status.conditions[?(@.type=="Serving")].status`,description="Whether every member can take requests."
// +kubebuilder:printcolumn:name="REASON",type=string,JSONPath=`.status.conditions[?(@.type=="Serving")].reason`,description="Why SERVING is what it is."
// +kubebuilder:printcolumn:name="FIRST",type=string,priority=1,JSONPath=`.spec.members[0].cluster`,description="The cluster of the first member."
// +kubebuilder:printcolumn:name="AGE",type=date,JSONPath=`.metadata.creationTimestamp`
type GlobalGateway struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is what is asked of the global gateway.
	// +required
	Spec GlobalGatewaySpec `json:"spec"`
	// Status is written by whoever runs it and ignored in documents.
	// +optional
	Status GlobalGatewayStatus `json:"status,omitempty,omitzero"`
}

// GlobalGatewayList is what an API server returns for several.
//
// +kubebuilder:object:root=true
type GlobalGatewayList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []GlobalGateway `json:"items"`
}

// GlobalGatewaySpec is what a user asks of a global gateway.
//
// +kubebuilder:validation:XValidation:rule="!has(self.weights) || self.weights.RegionProximity == 0.0 || self.members.all(m, (has(m.region) && size(m.region) > 0) || (has(m.clusterArn) && size(m.clusterArn) > 0))",message="every member needs a region or a clusterArn where RegionProximity counts",reason=FieldValueRequired,fieldPath=".members"
type GlobalGatewaySpec struct {
	// GatewayID is what the paths of the reference's API call it. Where it is not set, that is the object's name.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[a-z0-9]*$`
	GatewayID string `json:"gatewayId,omitempty"`
	// Region is the one that the global gateway itself is in, from which proximity is measured until round trips are known.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^([a-z0-9]([-a-z0-9]*[a-z0-9])?)?$`
	Region string `json:"region,omitempty"`
	// Members are the gateways that requests are sent to.
	// +required
	// +listType=map
	// +listMapKey=cluster
	// +listMapKey=namespace
	// +listMapKey=name
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=1000
	Members []GlobalMember `json:"members"`
	// Weights chooses the member by weighted scores: all four, which together are 1. Where it is not set, the least expected latency decides, and the members'
	// costs count.
	// +optional
	Weights *GlobalWeights `json:"weights,omitempty"`
	// Ramp says how a member comes into use. Where it is not set, its defaults hold.
	// +optional
	Ramp *GlobalRamp `json:"ramp,omitempty"`
	// Limits bound what all members together are sent.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=100
	Limits []GlobalLimit `json:"limits,omitempty"`
}

// GlobalMember is a gateway in some cluster: an InferenceGatewayConfig, by its names there.
type GlobalMember struct {
	// Cluster is what its cluster is called in headers, metrics and logs.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Cluster string `json:"cluster"`
	// Namespace is that of the InferenceGatewayConfig.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Namespace string `json:"namespace"`
	// Name is that of the InferenceGatewayConfig.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`
	Name string `json:"name"`
	// ClusterARN is the name of the cluster in AWS, by which the reference's API names members.
	// +optional
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:Pattern=`^(arn:[a-z0-9-]+:(eks|sagemaker):[a-z0-9-]+:[0-9]{12}:cluster/\S+)?$`
	ClusterARN string `json:"clusterArn,omitempty"`
	// Region is the one that the cluster is in; where it is not set, that of clusterArn.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^([a-z0-9]([-a-z0-9]*[a-z0-9])?)?$`
	Region string `json:"region,omitempty"`
	// Endpoint is where its gateway takes requests: http:// or https://, a host, a port where it isn't the usual one.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^https?://([A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?$`
	Endpoint string `json:"endpoint"`
	// CostMilliseconds is what a request there costs more than elsewhere, as the time that is worth waiting for a cheaper
	// member.
	// +optional
	// +kubebuilder:default=0
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=600000
	CostMilliseconds *int32 `json:"costMilliseconds,omitempty"`
	// Drain keeps new requests away and lets those under way finish.
	// +optional
	Drain bool `json:"drain,omitempty"`
}

// GlobalWeights says how much each signal counts: all four together are 1. A weight of 0 switches its signal off. The names
// are the reference's.
//
// +kubebuilder:validation:XValidation:rule="self.KVHeadroom + self.QueueDepth + self.RegionProximity + self.ErrorRate >= 0.999 && self.KVHeadroom + self.QueueDepth + self.RegionProximity + self.ErrorRate <= 1.001",message="KVHeadroom, QueueDepth, RegionProximity and ErrorRate must sum to 1.0"
type GlobalWeights struct {
	// KVHeadroom prefers members with more of their KV cache free.
	// +required
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1
	KVHeadroom *float64 `json:"KVHeadroom"`
	// QueueDepth prefers members with fewer waiting requests.
	// +required
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1
	QueueDepth *float64 `json:"QueueDepth"`
	// RegionProximity prefers members that are near.
	// +required
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1
	RegionProximity *float64 `json:"RegionProximity"`
	// ErrorRate prefers members that answer with fewer errors.
	// +required
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1
	ErrorRate *float64 `json:"ErrorRate"`
}

// GlobalRamp says how a member comes into use that is new, or was away.
type GlobalRamp struct {
	// Duration is how long it takes until it has its whole share, in h, m, s and ms without fractions. 0s gives it at once.
	// +optional
	// +kubebuilder:default="60s"
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^([0-9]{1,5}(h|m|s|ms)){1,4}$`
	Duration *string `json:"duration,omitempty"`
}

// GlobalLimit bounds what all members together are sent; what is above it is answered 429.
//
// +kubebuilder:validation:XValidation:rule="has(self.requestsPerMinute) || has(self.tokensPerMinute)",message="at least one of requestsPerMinute or tokensPerMinute must be set"
type GlobalLimit struct {
	// Name is what the limit is called in metrics and logs.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Name string `json:"name"`
	// ModelName is the model that it is for; where it is not set, all together.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	ModelName string `json:"modelName,omitempty"`
	// RequestsPerMinute is how many requests may be sent in a minute.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000000000
	RequestsPerMinute *int64 `json:"requestsPerMinute,omitempty"`
	// TokensPerMinute is how many tokens, of prompts and answers, they may have in a minute.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000000000
	TokensPerMinute *int64 `json:"tokensPerMinute,omitempty"`
}

// MemberState is how far a member is one. It does not say how the member is.
// +kubebuilder:validation:Enum=ADDING;ACTIVE;REMOVING;FAILED
type MemberState string

// The states of a membership, by the reference's words.
const (
	MemberAdding   MemberState = "ADDING"
	MemberActive   MemberState = "ACTIVE"
	MemberRemoving MemberState = "REMOVING"
	MemberFailed   MemberState = "FAILED"
)

// GlobalGatewayStatus is what is reported of a global gateway.
type GlobalGatewayStatus struct {
	// Conditions are Accepted, Ready and Serving.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// Members has an entry for each of the spec's.
	// +optional
	// +listType=map
	// +listMapKey=cluster
	// +listMapKey=namespace
	// +listMapKey=name
	Members []GlobalMemberStatus `json:"members,omitempty"`
	// ObservedGeneration is the generation that the rest of the status speaks of.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
}

// GlobalMemberStatus is what is reported of one member.
type GlobalMemberStatus struct {
	// Cluster is the member's.
	// +required
	Cluster string `json:"cluster"`
	// Namespace is the member's.
	// +required
	Namespace string `json:"namespace"`
	// Name is the member's.
	// +required
	Name string `json:"name"`
	// State is how far it is a member.
	// +optional
	State MemberState `json:"state,omitempty"`
	// Conditions are what holds for this member alone.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

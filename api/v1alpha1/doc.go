// Package v1alpha1 holds the Go types of the documents that Sluice reads: InferenceGatewayConfig (group
// inference.sagemaker.aws.amazon.com), which says which models there are and how each is routed, Endpoints (group
// gateway.sluice.dev), which lists model servers where there are no pods to select, GatewayPolicy (the same group), which
// asks what the first has no fields for, and GlobalGateway (the same), which puts one address in front of several clusters.
//
// The types carry field names, defaults and bounds, and nothing that acts: package config reads documents into them,
// validates them and turns them into what a process runs. Bounds stand on the fields as kubebuilder markers, rules over
// several fields as CEL markers with the very sentences a user sees, so that a custom resource definition made from
// these types refuses what package config refuses. The definitions, in deploy/crds, and zz_generated.deepcopy.go are made
// from this package by go test ./api/v1alpha1 -rewrite.
//
// +kubebuilder:object:generate=true
package v1alpha1

import "time"

// Groups, version and kinds: the words of apiVersion and kind.
const (
	// InferenceGroup is the API group of InferenceGatewayConfig.
	InferenceGroup = "inference.sagemaker.aws.amazon.com"
	// GatewayGroup is the API group of Sluice's own documents.
	GatewayGroup = "gateway.sluice.dev"
	// Version is the version of every kind in this package.
	Version = "v1alpha1"

	// InferenceGatewayConfigKind is the kind of the gateway document.
	InferenceGatewayConfigKind = "InferenceGatewayConfig"
	// GatewayPolicyKind is the kind of the document with what a gateway is asked besides.
	GatewayPolicyKind = "GatewayPolicy"
	// EndpointsKind is the kind of the document that lists endpoints by address.
	EndpointsKind = "Endpoints"
	// GlobalGatewayKind is the kind of the document that names the gateways of several clusters.
	GlobalGatewayKind = "GlobalGateway"
)

// Defaults of fields that are not set.
const (
	// DefaultReplicas is the number of copies of the body-based router and of each picker.
	DefaultReplicas int32 = 2
	// DefaultBackendPort is the port of spec.bbr.defaultBackend.
	DefaultBackendPort int32 = 8000
	// DefaultBackendPool is what pickers call spec.bbr.defaultBackend beside schedulers, whose names hold no space.
	DefaultBackendPool = "default backend"
	// DefaultTargetPort is the port of the model servers of a scheduler.
	DefaultTargetPort int32 = 8000
	// DefaultKVEventsPort and DefaultKVReplayPort are those of vLLM's documentation.
	DefaultKVEventsPort int32 = 5557
	DefaultKVReplayPort int32 = 5558
	// MaxRanks bounds the data-parallel ranks at one address.
	MaxRanks int32 = 1024
	// DefaultSessionCost, in milliseconds, and DefaultSessionWeight are what leaving a session's endpoint costs, and
	// DefaultSessionTTL, in documents DefaultSessionTTLText, is how long a session is remembered.
	DefaultSessionCost          = 50
	DefaultSessionWeight  int32 = 3
	DefaultSessionTTL           = 10 * time.Minute
	DefaultSessionTTLText       = "10m"
	// DefaultMemberCost, in milliseconds, is what a member of a global gateway costs more than others, and DefaultRampText how
	// long a member takes to come into use.
	DefaultMemberCost int32 = 0
	DefaultRampText         = "60s"
	// DefaultPickerConfigKey is the key read from the ConfigMap of configMapRef.
	DefaultPickerConfigKey = "default-plugins.yaml"
	// DefaultQueueWeight, DefaultKVCacheWeight and DefaultPrefixWeight complete a weights block that is there but does
	// not name them. Where no block is there, no weights are in force.
	DefaultQueueWeight   int32 = 2
	DefaultKVCacheWeight int32 = 2
	DefaultPrefixWeight  int32 = 3
)

// Bounds that have no shorter home than a marker and are checked by hand too.
const (
	// MaxRequestBodyBytes is both the default and the ceiling of spec.bbr.maxRequestBodyBytes.
	MaxRequestBodyBytes int64 = 268435456
	// MaxSessionName is the longest name of a header or cookie with a session's id, in characters.
	MaxSessionName = 64
	// MaxSessionCost is the most that leaving a session's endpoint may cost, in milliseconds, MaxSessionWeight its greatest
	// weight.
	MaxSessionCost   int32 = 600_000
	MaxSessionWeight int32 = 1_000_000
	// MaxSchedulers is the most entries spec.schedulers may have.
	MaxSchedulers = 100
	// MaxSchedulerName is the longest scheduler name, in characters.
	MaxSchedulerName = 63
	// MaxModelName is the longest model or adapter name, in characters.
	MaxModelName = 253
	// MaxAdapters is the most adapters a scheduler may list.
	MaxAdapters = 50
	// MaxLogLevel is the most talkative log level of a picker.
	MaxLogLevel int32 = 5
	// MaxAudiences is the most audiences a JWT provider may list.
	MaxAudiences = 8
	// MaxRequiredClaims is the most claims a JWT provider may require.
	MaxRequiredClaims = 16
	// MaxClaimValues is the most values a required claim may allow.
	MaxClaimValues = 128
	// MaxClaimValue is the longest value of a required claim, in characters.
	MaxClaimValue = 1024
	// MaxSelectorTerms is the most labels, and the most expressions, of a selector, and the most values of an expression:
	// an InferencePool's selector has the same bound.
	MaxSelectorTerms = 64
	// MaxEndpoints is the most entries an Endpoints document may have.
	MaxEndpoints = 2048
	// MaxAddress is the longest address of an endpoint, in characters: a name, a colon and a port.
	MaxAddress = 260
	// MaxVariableName is the longest name of an environment variable with a key, MaxPath the longest path of a file.
	MaxVariableName = 253
	MaxPath         = 4096
	// MaxMembers and MaxLimits are the most members and limits of a global gateway. The reference has ten members at most.
	MaxMembers, MaxLimits = 1000, 100
	// MaxPerMinute is the highest limit that a global gateway can have.
	MaxPerMinute int64 = 1_000_000_000_000
	// MaxLabelName is the longest name of a cluster, a namespace, a region or a limit; MaxObjectName that of an object;
	// MaxGatewayID that of a global gateway in the paths of the reference's API; MaxARN and MaxURL those of an ARN and a URL.
	MaxLabelName, MaxObjectName, MaxGatewayID, MaxARN, MaxURL = 63, 253, 64, 2048, 512
	// WeightTolerance is how far from 1 the sum of a global gateway's weights may be.
	WeightTolerance = .001
)

// Sentences of the rules over several fields: what an API server answers when a CEL rule fails, and what package config
// answers too.
const (
	// MessageBBRRequired is said of two or more schedulers without body-based routing.
	MessageBBRRequired = "bbr must be enabled when more than one scheduler is defined"
	// MessageModelNameUnique is said of a model that two schedulers claim.
	MessageModelNameUnique = "modelName must be unique across schedulers"
	// MessageWeightsOrConfigMap is said of a scheduler that has both.
	MessageWeightsOrConfigMap = "weights and configMapRef are mutually exclusive"
	// MessageLRUNeedsLLMD is said of the lru weight beside scheduler epp.
	MessageLRUNeedsLLMD = "weights.lru is only supported when scheduler is llm-d"
	// MessageAudiencesOrClaims is said of a JWT provider that would let any token in.
	MessageAudiencesOrClaims = "at least one of audiences or requiredClaims must be set"
	// MessageHeaderOrCookie is said of a sessionAffinity by which no session could be told.
	MessageHeaderOrCookie = "at least one of header or cookie must be set"
	// MessageAPIKeySource is said of an apiKey with no source, or with two.
	MessageAPIKeySource = "exactly one of env or file must be set"
	// MessageWeightsSum is said of weights of a global gateway that are not 1 together.
	MessageWeightsSum = "KVHeadroom, QueueDepth, RegionProximity and ErrorRate must sum to 1.0"
	// MessageRegions is said of members whose place is not known and would count.
	MessageRegions = "every member needs a region or a clusterArn where RegionProximity counts"
	// MessageLimit is said of a limit that bounds nothing.
	MessageLimit = "at least one of requestsPerMinute or tokensPerMinute must be set"
	// MessageTopologyWhole is said of a topology that is asked of one scheduler.
	MessageTopologyWhole = "is for a whole gateway: leave targetRef.sectionName out"
)

// Forms of texts.
const (
	// DurationPattern is what a Gateway API duration looks like.
	DurationPattern = `^([0-9]{1,5}(h|m|s|ms)){1,4}$`
	// HTTPSPattern is what the address of a token provider looks like.
	HTTPSPattern = `^https://[^/?#\s]+([/?#]\S*)?$`
	// VariablePattern is what the name of an environment variable looks like.
	VariablePattern = `^[A-Za-z_][A-Za-z0-9_]*$`
	// SessionNamePattern is what the name of a header or a cookie looks like (RFC 9110, section 5.6.2); empty is for none.
	SessionNamePattern = "^[!#$%&'*+.^_`|~0-9A-Za-z-]*$"
	// LabelNamePattern is what the name of a cluster, a namespace, a region or a limit looks like.
	LabelNamePattern = `^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	// GatewayIDPattern is what the id of a global gateway looks like; empty is for none.
	GatewayIDPattern = `^[a-z0-9]*$`
	// ClusterARNPattern is what the name of a cluster in AWS looks like; empty is for none.
	ClusterARNPattern = `^(arn:[a-z0-9-]+:(eks|sagemaker):[a-z0-9-]+:[0-9]{12}:cluster/\S+)?$`
	// MemberPattern is what the address of a member looks like.
	MemberPattern = `^https?://([A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?$`
)

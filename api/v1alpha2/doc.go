// Package v1alpha2 holds the Go types of two documents of the Gateway API Inference Extension and of llm-d:
// InferenceModelRewrite says under which names a pool's requests go on, InferenceObjective how urgent they are. No module has
// them, so that they stand here, with the same fields on the wire.
//
// The types carry field names and bounds, and nothing that acts: package config reads documents into them and checks them.
package v1alpha2

// Groups, version and kind: the words of apiVersion and kind.
const (
	// LLMDGroup is llm-d's group of the kinds, ExtensionGroup the older one.
	LLMDGroup      = "llm-d.ai"
	ExtensionGroup = "inference.networking.x-k8s.io"
	// Version is the version of the kinds in both.
	Version = "v1alpha2"

	// InferenceModelRewriteKind and InferenceObjectiveKind are the kinds of the documents.
	InferenceModelRewriteKind = "InferenceModelRewrite"
	InferenceObjectiveKind    = "InferenceObjective"

	// PoolGroup is the group of the pools that documents refer to; ExtensionGroup is the older one. PoolKind is their kind.
	PoolGroup = "inference.networking.k8s.io"
	PoolKind  = "InferencePool"
)

// MaxTargetWeight is the largest weight of a target.
const MaxTargetWeight int32 = 1_000_000

// MessageAllWeights is said of a rule some of whose targets have a weight.
const MessageAllWeights = "must be set for all targets of the rule or for none"

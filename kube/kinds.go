package kube

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/sluice-gateway/sluice/api/v1alpha1"
	"github.com/sluice-gateway/sluice/api/v1alpha2"
)

// kind is a kind of object, and what an API server calls it in its addresses and its rights.
type kind struct {
	schema.GroupVersionKind
	resource string
}

// name is a kind as translate.Context has it.
func (k kind) name() string {
	if k.Group == "" {
		return k.Kind + "." + k.Version
	}
	return k.Kind + "." + k.Group + "/" + k.Version
}

// plural is a kind as rights have it, with its group.
func (k kind) plural() string {
	if k.Group == "" {
		return k.resource
	}
	return k.resource + "." + k.Group
}

// Groups of kinds.
const (
	groupGateway      = "gateway.networking.k8s.io"
	groupEnvoyGateway = "gateway.envoyproxy.io"
	groupPolicies     = "policy"
	groupRoles        = "rbac.authorization.k8s.io"
	groupDefinitions  = "apiextensions.k8s.io"
	groupCertManager  = "cert-manager.io"
	groupMonitoring   = "monitoring.coreos.com"
	groupNetworking   = "networking.k8s.io"
)

// Kinds that code asks for by name.
const (
	kindConfig     = v1alpha1.InferenceGatewayConfigKind
	kindPolicy     = v1alpha1.GatewayPolicyKind
	kindRewrite    = v1alpha2.InferenceModelRewriteKind
	kindObjective  = v1alpha2.InferenceObjectiveKind
	kindEndpoints  = v1alpha1.EndpointsKind
	kindConfigMap  = "ConfigMap"
	kindSecret     = "Secret"
	kindPod        = "Pod"
	kindService    = "Service"
	kindDeployment = "Deployment"
	kindGateway    = "Gateway"
	kindRoute      = "HTTPRoute"
	kindDefinition = "CustomResourceDefinition"

	kindCertificate = "Certificate"
)

func of(group, version, name, resource string) kind {
	return kind{schema.GroupVersionKind{Group: group, Version: version, Kind: name}, resource}
}

// Kinds that are read and not made.
func configKind() kind {
	return of(v1alpha1.InferenceGroup, v1alpha1.Version, kindConfig, "inferencegatewayconfigs")
}
func policyKind() kind {
	return of(v1alpha1.GatewayGroup, v1alpha1.Version, kindPolicy, "gatewaypolicies")
}
func endpointsKind() kind {
	return of(v1alpha1.GatewayGroup, v1alpha1.Version, kindEndpoints, "endpoints")
}
func podKind() kind    { return of("", "v1", kindPod, "pods") }
func secretKind() kind { return of("", "v1", kindSecret, "secrets") }
func mapKind() kind    { return of("", "v1", kindConfigMap, "configmaps") }

func serviceKind() kind { return of("", "v1", kindService, "services") }
func definitionKind() kind {
	return of(groupDefinitions, "v1", kindDefinition, "customresourcedefinitions")
}

func certificateKind() kind { return of(groupCertManager, "v1", kindCertificate, "certificates") }

func rewriteKinds() []kind {
	return []kind{
		of(v1alpha2.LLMDGroup, v1alpha2.Version, kindRewrite, "inferencemodelrewrites"),
		of(v1alpha2.ExtensionGroup, v1alpha2.Version, kindRewrite, "inferencemodelrewrites"),
	}
}

func objectiveKinds() []kind {
	return []kind{
		of(v1alpha2.LLMDGroup, v1alpha2.Version, kindObjective, "inferenceobjectives"),
		of(v1alpha2.ExtensionGroup, v1alpha2.Version, kindObjective, "inferenceobjectives"),
	}
}

// madeKinds are those that a plan may have objects of, in the order in which they are best removed: first what brings
// requests, then what they are for. Secrets are not among them, since nobody may list those of a whole cluster.
func madeKinds() []kind {
	return []kind{
		of(groupGateway, "v1", kindRoute, "httproutes"),
		of(groupEnvoyGateway, "v1alpha1", "EnvoyExtensionPolicy", "envoyextensionpolicies"),
		of(groupEnvoyGateway, "v1alpha1", "HTTPRouteFilter", "httproutefilters"),
		of(groupGateway, "v1", kindGateway, "gateways"),
		of(groupEnvoyGateway, "v1alpha1", "SecurityPolicy", "securitypolicies"),
		of(groupEnvoyGateway, "v1alpha1", "ClientTrafficPolicy", "clienttrafficpolicies"),
		of(groupEnvoyGateway, "v1alpha1", "BackendTrafficPolicy", "backendtrafficpolicies"),
		of(groupEnvoyGateway, "v1alpha1", "EnvoyProxy", "envoyproxies"),
		of(groupGateway, "v1", "BackendTLSPolicy", "backendtlspolicies"),
		of(groupGateway, "v1alpha3", "BackendTLSPolicy", "backendtlspolicies"),
		of(groupGateway, "v1beta1", "ReferenceGrant", "referencegrants"),
		of(v1alpha2.PoolGroup, "v1", v1alpha2.PoolKind, "inferencepools"),
		certificateKind(),
		of(groupMonitoring, "v1", "ServiceMonitor", "servicemonitors"),
		of(groupPolicies, "v1", "PodDisruptionBudget", "poddisruptionbudgets"),
		of("apps", "v1", kindDeployment, "deployments"),
		of(groupNetworking, "v1", "NetworkPolicy", "networkpolicies"),
		serviceKind(),
		mapKind(),
		of(groupRoles, "v1", "RoleBinding", "rolebindings"),
		of(groupRoles, "v1", "Role", "roles"),
		of("", "v1", "ServiceAccount", "serviceaccounts"),
	}
}

// madeKind is one of those, by what an object says of itself.
func madeKind(k schema.GroupVersionKind) (kind, bool) {
	list := madeKinds()
	if i := slices.IndexFunc(list, func(m kind) bool { return m.GroupVersionKind == k }); i >= 0 {
		return list[i], true
	}
	return kind{}, false
}

// builtIn reports whether every API server has a group.
func builtIn(group string) bool {
	return group == groupRoles || group == groupNetworking || group == groupDefinitions || !strings.Contains(group, ".")
}

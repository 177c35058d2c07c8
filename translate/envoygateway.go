package translate

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// The kinds of Envoy Gateway, wire-compatible in the few fields that are set here. Its own module has them all, and asks for
// unreleased versions of Envoy's types, which would be forced on everything else; a test holds what is written with
// these against its definitions.
const (
	envoyGatewayGroup   = "gateway.envoyproxy.io"
	envoyGatewayVersion = envoyGatewayGroup + "/v1alpha1"
)

type policyTarget struct {
	Group string `json:"group"`
	Kind  string `json:"kind"`
	Name  string `json:"name"`
}

type envoyExtensionPolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		TargetRefs []policyTarget `json:"targetRefs"`
		ExtProc    []extProc      `json:"extProc"`
	} `json:"spec"`
}

type extProc struct {
	BackendRefs    []serviceRef   `json:"backendRefs"`
	MessageTimeout string         `json:"messageTimeout"`
	FailOpen       bool           `json:"failOpen"`
	StatusOnError  int32          `json:"statusOnError"`
	ProcessingMode processingMode `json:"processingMode"`
	Metadata       extMetadata    `json:"metadata"`
}

type serviceRef struct {
	Group     string `json:"group"`
	Kind      string `json:"kind"`
	Name      string `json:"name"`
	Namespace string `json:"namespace,omitempty"`
	Port      int32  `json:"port"`
}

type processingMode struct {
	Request           bodyMode `json:"request"`
	Response          bodyMode `json:"response"`
	AllowModeOverride bool     `json:"allowModeOverride"`
}

type bodyMode struct {
	Body       string   `json:"body,omitempty"`
	Attributes []string `json:"attributes,omitempty"`
}

type extMetadata struct {
	AccessibleNamespaces []string `json:"accessibleNamespaces"`
	WritableNamespaces   []string `json:"writableNamespaces"`
}

type securityPolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		TargetRefs    []policyTarget `json:"targetRefs"`
		JWT           *jwt           `json:"jwt,omitempty"`
		Authorization *authorization `json:"authorization,omitempty"`
	} `json:"spec"`
}

type jwt struct {
	Providers []jwtProvider `json:"providers"`
}

type jwtProvider struct {
	Name       string     `json:"name"`
	Issuer     string     `json:"issuer"`
	Audiences  []string   `json:"audiences,omitempty"`
	RemoteJWKS remoteJWKS `json:"remoteJWKS"`
}

type remoteJWKS struct {
	URI string `json:"uri"`
}

type authorization struct {
	DefaultAction string              `json:"defaultAction"`
	Rules         []authorizationRule `json:"rules,omitempty"`
}

type authorizationRule struct {
	Name      string    `json:"name"`
	Action    string    `json:"action"`
	Principal principal `json:"principal"`
}

type principal struct {
	JWT jwtPrincipal `json:"jwt"`
}

type jwtPrincipal struct {
	Provider string     `json:"provider"`
	Claims   []jwtClaim `json:"claims"`
}

type jwtClaim struct {
	Name      string   `json:"name"`
	ValueType string   `json:"valueType"`
	Values    []string `json:"values"`
}

type clientTrafficPolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		TargetRefs []policyTarget   `json:"targetRefs"`
		Connection clientConnection `json:"connection"`
		Headers    clientHeaders    `json:"headers"`
		Timeout    clientTimeout    `json:"timeout"`
		HTTP2      clientHTTP2      `json:"http2"`
	} `json:"spec"`
}

type clientHTTP2 struct {
	InitialStreamWindowSize     string `json:"initialStreamWindowSize"`
	InitialConnectionWindowSize string `json:"initialConnectionWindowSize"`
	MaxConcurrentStreams        int    `json:"maxConcurrentStreams"`
}

type clientConnection struct {
	BufferLimit string `json:"bufferLimit"`
}

type clientHeaders struct {
	RequestID             string       `json:"requestID"`
	WithUnderscoresAction string       `json:"withUnderscoresAction"`
	EarlyRequestHeaders   headerFilter `json:"earlyRequestHeaders"`
}

type headerFilter struct {
	Remove        []string      `json:"remove"`
	RemoveOnMatch []stringMatch `json:"removeOnMatch"`
}

type stringMatch struct {
	Type  string `json:"type"`
	Value string `json:"value"`
}

type clientTimeout struct {
	HTTP clientHTTPTimeout `json:"http"`
}

type clientHTTPTimeout struct {
	RequestReceivedTimeout        string `json:"requestReceivedTimeout"`
	RequestHeadersReceivedTimeout string `json:"requestHeadersReceivedTimeout"`
	IdleTimeout                   string `json:"idleTimeout"`
	StreamIdleTimeout             string `json:"streamIdleTimeout"`
}

type backendTrafficPolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		TargetRefs     []policyTarget   `json:"targetRefs"`
		LoadBalancer   loadBalancer     `json:"loadBalancer"`
		Retry          retry            `json:"retry"`
		HealthCheck    healthCheck      `json:"healthCheck"`
		CircuitBreaker map[string]int64 `json:"circuitBreaker"`
		Timeout        backendTimeout   `json:"timeout"`
	} `json:"spec"`
}

type loadBalancer struct {
	Type             string           `json:"type"`
	EndpointOverride endpointOverride `json:"endpointOverride"`
}

type endpointOverride struct {
	ExtractFrom []extractFrom `json:"extractFrom"`
}

type extractFrom struct {
	Header string `json:"header"`
}

type retry struct {
	NumRetries int32    `json:"numRetries"`
	RetryOn    retryOn  `json:"retryOn"`
	PerRetry   perRetry `json:"perRetry"`
}

type retryOn struct {
	Triggers        []string `json:"triggers"`
	HTTPStatusCodes []int    `json:"httpStatusCodes"`
}

type perRetry struct {
	BackOff backOff `json:"backOff"`
}

type backOff struct {
	BaseInterval string `json:"baseInterval"`
	MaxInterval  string `json:"maxInterval"`
}

type healthCheck struct {
	Passive passiveCheck `json:"passive"`
}

type passiveCheck struct {
	Interval                 string `json:"interval"`
	BaseEjectionTime         string `json:"baseEjectionTime"`
	ConsecutiveGatewayErrors int32  `json:"consecutiveGatewayErrors"`
	Consecutive5xxErrors     int32  `json:"consecutive5XxErrors"`
	MaxEjectionPercent       int32  `json:"maxEjectionPercent"`
}

type backendTimeout struct {
	HTTP backendHTTPTimeout `json:"http"`
	TCP  backendTCPTimeout  `json:"tcp"`
}

type backendHTTPTimeout struct {
	RequestTimeout    string `json:"requestTimeout"`
	StreamIdleTimeout string `json:"streamIdleTimeout"`
}

type backendTCPTimeout struct {
	ConnectTimeout string `json:"connectTimeout"`
}

type httpRouteFilter struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		DirectResponse directResponse `json:"directResponse"`
	} `json:"spec"`
}

type directResponse struct {
	StatusCode  int        `json:"statusCode"`
	ContentType string     `json:"contentType"`
	Body        directBody `json:"body"`
}

type directBody struct {
	Type   string `json:"type"`
	Inline string `json:"inline"`
}

type envoyProxy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Provider    envoyProvider    `json:"provider"`
		Shutdown    envoyShutdown    `json:"shutdown"`
		BackendTLS  envoyTLS         `json:"backendTLS"`
		FilterOrder []filterPosition `json:"filterOrder"`
	} `json:"spec"`
}

type filterPosition struct {
	Name   string `json:"name"`
	Before string `json:"before"`
}

type envoyProvider struct {
	Type       string          `json:"type"`
	Kubernetes envoyKubernetes `json:"kubernetes"`
}

type envoyKubernetes struct {
	EnvoyDeployment envoyDeployment `json:"envoyDeployment"`
	EnvoyService    envoyService    `json:"envoyService"`
	EnvoyPDB        *envoyPDB       `json:"envoyPDB,omitempty"`
}

type envoyDeployment struct {
	Replicas  int32          `json:"replicas"`
	Container envoyContainer `json:"container"`
	Pod       envoyPod       `json:"pod"`
}

type envoyContainer struct {
	Image string `json:"image,omitempty"`
}

type envoyPod struct {
	TopologySpreadConstraints []corev1.TopologySpreadConstraint `json:"topologySpreadConstraints"`
	ImagePullSecrets          []corev1.LocalObjectReference     `json:"imagePullSecrets,omitempty"`
}

type envoyService struct {
	Name        string             `json:"name"`
	Type        corev1.ServiceType `json:"type"`
	Annotations map[string]string  `json:"annotations,omitempty"`
}

type envoyPDB struct {
	MaxUnavailable int `json:"maxUnavailable"`
}

type envoyShutdown struct {
	DrainTimeout     string `json:"drainTimeout"`
	MinDrainDuration string `json:"minDrainDuration"`
}

type envoyTLS struct {
	ClientCertificateRef gatewayv1.SecretObjectReference `json:"clientCertificateRef"`
}

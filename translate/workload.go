package translate

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/sluice-gateway/sluice/api/v1alpha1"
)

// Ports of our own pods.
const (
	portPick  = 9002
	portServe = 8080
	portAdmin = 9090
	portPeers = 8082
)

// Times around the end of a pod, in seconds: how long it goes on taking requests while Envoys hear that it leaves, how long
// running ones may take at least and at most, and how much later the kubelet ends it.
const (
	drainDelay = 15
	drainLeast = 600
	drainMost  = 3600
	drainSlack = 15
)

// drain is how long running requests may take when a pod ends, in seconds: what a scheduler allows a whole request. A
// picker that leaves earlier takes the answers along that Envoy still shows it the end of.
func (b *builder) drain() int64 {
	longest := int64(drainLeast)
	for i := range b.config.Spec.Schedulers {
		if text := b.config.Spec.Schedulers[i].RouteTimeout; text != nil {
			var d metav1.Duration
			if err := d.UnmarshalJSON([]byte(`"` + *text + `"`)); err == nil { // its form was checked before
				longest = max(longest, int64(d.Seconds()))
			}
		}
	}
	return min(longest, drainMost)
}

// Folders in our containers.
const (
	folderFile = "/etc/sluice/gateway"
	folderTLS  = "/etc/sluice/tls"
	fileName   = "gateway.yaml"
)

// flagSelectOnly makes a body-based router of a picker.
const flagSelectOnly = "--select-only"

// workload is one Deployment of ours with everything around it.
type workload struct {
	// name is the Deployment's and its Service's, account the ServiceAccount's.
	namespace, name, account string
	// scheduler is whose it is; empty for the whole gateway's.
	scheduler string
	// does are the command and its flags that the others don't have.
	does []string
	// port is where requests come in, portName what the port is called; secure: by our own TLS.
	port     int32
	portName string
	secure   bool
	replicas int32
	env      []corev1.EnvVar
	envFrom  []corev1.EnvFromSource
	verbose  *int32
	// schedulers are those whose documents its file has.
	schedulers []*v1alpha1.Scheduler
	// selectModel is what its file says of the body's model.
	selectModel bool
	// alias: each scheduler has a Service that leads to it, under the name that users know.
	alias bool
	// peers: its copies tell each other what they do.
	peers bool
}

// pickers plans whom Envoy asks.
func (b *builder) pickers() {
	if b.topology == v1alpha1.TopologySplit {
		b.split()
		return
	}
	name := pickerOf(b.config.Name)
	w := b.whole(name)
	w.does, w.port, w.portName, w.secure = []string{"pick"}, portPick, "grpc", true
	w.alias = true
	b.roles(name, b.config.Namespace, []string{name})
	b.workload(w)
}

// split plans the body-based router and a picker for each scheduler.
func (b *builder) split() {
	readers := pickerOf(b.config.Name)
	var files []string
	for _, s := range b.served() {
		files = append(files, schedulerOf(s.Name))
	}
	if len(files) > 0 { // a rule that names no ConfigMap is about all of them
		b.roles(readers, b.config.Namespace, files)
	}
	if b.selects() {
		name := routerOf(b.config.Name)
		w := b.whole(name)
		w.namespace, w.does, w.port, w.portName, w.secure, w.peers = b.s.SystemNamespace, []string{"pick", flagSelectOnly}, portPick, "grpc", true, false
		w.replicas, w.env, w.envFrom, w.verbose = *b.config.Spec.BBR.Replicas, b.podEnv(), b.podEnvFrom(), nil
		b.roles(name, b.s.SystemNamespace, []string{name})
		b.workload(w)
	}
	for _, s := range b.served() {
		env, from := b.podEnv(), b.podEnvFrom()
		b.workload(&workload{
			namespace: b.config.Namespace, name: schedulerOf(s.Name), account: readers, scheduler: s.Name, does: []string{"pick"},
			port: portPick, portName: "grpc", secure: true, replicas: *s.Replicas, verbose: s.LogLevel, peers: true,
			env: over(env, s.Env), envFrom: append(from, s.EnvFrom...), schedulers: []*v1alpha1.Scheduler{s},
		})
	}
}

// embedded plans our own proxy in Envoy's place.
func (b *builder) embedded() {
	name := embeddedOf(b.config.Name)
	w := b.whole(name)
	w.does, w.port, w.portName = []string{"serve"}, portServe, "http"
	b.roles(name, b.config.Namespace, []string{name})
	b.workload(w)
}

// whole is a workload that does everything of the gateway: as many copies as the most that anyone asks for, and every
// scheduler's variables.
func (b *builder) whole(name string) *workload {
	w := &workload{namespace: b.config.Namespace, name: name, account: name, schedulers: b.served(), selectModel: b.selects(), peers: true,
		env: b.podEnv(), envFrom: b.podEnvFrom(), replicas: 1}
	if b.selects() {
		w.replicas = *b.config.Spec.BBR.Replicas
	}
	set := make(map[string]string)
	for _, s := range w.schedulers {
		w.replicas = max(w.replicas, *s.Replicas)
		b.share(w, s, set)
		if s.LogLevel != nil && (w.verbose == nil || *w.verbose < *s.LogLevel) {
			w.verbose = s.LogLevel
		}
	}
	for _, s := range w.schedulers {
		if b.topology != v1alpha1.TopologySplit && s.LogLevel != nil && logLevel(s.LogLevel) != logLevel(w.verbose) {
			b.say(s.Name, "logLevel %d is that of no process, since one process with %d, the most that is asked for, serves several: give them the same, or a GatewayPolicy with topology Split", *s.LogLevel, *w.verbose)
		}
	}
	return w
}

// share gives a process a scheduler's variables. set says whose value each has; the first one's stays.
func (b *builder) share(w *workload, s *v1alpha1.Scheduler, set map[string]string) {
	for _, v := range s.Env {
		first, taken := set[v.Name]
		if !taken {
			set[v.Name] = s.Name
			w.env = over(w.env, []corev1.EnvVar{v})
			continue
		}
		if there := w.env[slices.IndexFunc(w.env, func(e corev1.EnvVar) bool { return e.Name == v.Name })]; b.topology != v1alpha1.TopologySplit && there.String() != v.String() {
			b.say(s.Name, "env %s has the value of scheduler %q, since one process serves both: give them the same, or a GatewayPolicy with topology Split", v.Name, first)
		}
	}
	for _, from := range s.EnvFrom {
		if !slices.ContainsFunc(w.envFrom, func(e corev1.EnvFromSource) bool { return e.String() == from.String() }) {
			w.envFrom = append(w.envFrom, from)
		}
	}
}

func (b *builder) podEnv() []corev1.EnvVar {
	if p := b.config.Spec.PodDefaults; p != nil {
		return slices.Clone(p.Env)
	}
	return nil
}

func (b *builder) podEnvFrom() []corev1.EnvFromSource {
	if p := b.config.Spec.PodDefaults; p != nil {
		return slices.Clone(p.EnvFrom)
	}
	return nil
}

// over is a list of variables with those of another in place of the ones with the same names.
func over(list, with []corev1.EnvVar) []corev1.EnvVar {
	for _, v := range with {
		if i := slices.IndexFunc(list, func(e corev1.EnvVar) bool { return e.Name == v.Name }); i >= 0 {
			list[i] = v
			continue
		}
		list = append(list, v)
	}
	return list
}

// logLevel is ours for one of the reference's, of which 0 says the least. A line for each request is in debug.
func logLevel(verbosity *int32) string {
	switch {
	case verbosity == nil:
		return "debug" // people look for their requests in the log
	case *verbosity == 0:
		return "warn"
	case *verbosity == 1:
		return "info"
	}
	return "debug"
}

// workload plans a Deployment, and what it needs to live.
func (b *builder) workload(w *workload) {
	b.file(w)
	selector := map[string]string{labelApp: w.name, LabelConfig: label(b.config.Name)}
	cert := b.services(w, selector)
	b.plan.Certificates = append(b.plan.Certificates, cert)
	b.wall(w, selector)
	d := &appsv1.Deployment{ObjectMeta: b.meta(w.namespace, w.name, w.scheduler), Spec: appsv1.DeploymentSpec{
		Replicas: &w.replicas,
		Selector: &metav1.LabelSelector{MatchLabels: selector},
		Strategy: appsv1.DeploymentStrategy{Type: appsv1.RollingUpdateDeploymentStrategyType,
			RollingUpdate: &appsv1.RollingUpdateDeployment{MaxUnavailable: &intstr.IntOrString{}, MaxSurge: &intstr.IntOrString{IntVal: 1}}},
		Template: b.pod(w, selector),
	}}
	b.add("apps/v1", "Deployment", d)
	if w.replicas > 1 {
		one := intstr.FromInt32(1)
		b.add("policy/v1", "PodDisruptionBudget", &policyv1.PodDisruptionBudget{ObjectMeta: b.meta(w.namespace, w.name, w.scheduler),
			Spec: policyv1.PodDisruptionBudgetSpec{MaxUnavailable: &one, Selector: &metav1.LabelSelector{MatchLabels: selector}}})
	}
	if b.measured() && b.ctx.knows("ServiceMonitor.monitoring.coreos.com/v1") {
		b.monitor(w)
	}
}

// services plans the names under which a workload is found, and says which certificate it needs. What is not for those
// who send requests is at a Service of its own, which nobody outside can reach, and which has each pod once.
func (b *builder) services(w *workload, selector map[string]string) Certificate {
	service := func(name, scheduler string, spec corev1.ServiceSpec) *corev1.Service {
		spec.Selector = selector
		return &corev1.Service{ObjectMeta: b.meta(w.namespace, name, scheduler), Spec: spec}
	}
	port := func(name string, number int32) corev1.ServicePort {
		return corev1.ServicePort{Name: name, Port: number, TargetPort: intstr.FromString(name)}
	}
	names := []string{w.name}
	if w.secure {
		b.add("v1", "Service", service(w.name, w.scheduler, corev1.ServiceSpec{Ports: []corev1.ServicePort{port(w.portName, w.port)}}))
	} else {
		s := service(w.name, w.scheduler, corev1.ServiceSpec{Type: b.s.ServiceType, Ports: []corev1.ServicePort{port(w.portName, portHTTP)}})
		maps.Copy(s.Annotations, b.s.ServiceAnnotations)
		b.add("v1", "Service", s)
	}
	if w.alias {
		for _, one := range w.schedulers {
			names = append(names, schedulerOf(one.Name))
			b.add("v1", "Service", service(schedulerOf(one.Name), one.Name, corev1.ServiceSpec{Ports: []corev1.ServicePort{port(w.portName, w.port)}}))
		}
	}
	pods := service(podsOf(w.name), w.scheduler, corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone, PublishNotReadyAddresses: true,
		Ports: []corev1.ServicePort{port("admin", portAdmin)}})
	pods.Labels[labelApp] = w.name // by which metrics are read
	cert := Certificate{Namespace: w.namespace, Secret: secretOf(w.name)}
	if w.secure {
		cert.ConfigMap, cert.Names = caOf(w.name), []string{w.name + "." + w.namespace + ".svc"}
		b.trust(w, names, cert)
	}
	if w.peers {
		pods.Spec.Ports = append(pods.Spec.Ports, port("peers", portPeers))
		cert.Names = append(cert.Names, podsOf(w.name)+"."+w.namespace+".svc")
	}
	b.add("v1", "Service", pods)
	return cert
}

// measured reports whether metrics are to be collected.
func (b *builder) measured() bool {
	o := b.config.Spec.Observability
	return o == nil || o.Metrics == nil || *o.Metrics.Enabled
}

// pod is the pod of a workload.
func (b *builder) pod(w *workload, selector map[string]string) corev1.PodTemplateSpec {
	grace := drainDelay + b.drain() + drainSlack
	yes := true
	m := metav1.ObjectMeta{Labels: maps.Clone(selector), Annotations: map[string]string{}}
	spec := corev1.PodSpec{
		ServiceAccountName:            w.account,
		TerminationGracePeriodSeconds: &grace,
		TopologySpreadConstraints:     spread(selector, true),
		ImagePullSecrets:              b.pullSecrets(),
		SecurityContext:               &corev1.PodSecurityContext{RunAsNonRoot: &yes, SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}},
		Containers:                    []corev1.Container{b.container(w)},
		Volumes: []corev1.Volume{
			{Name: "gateway", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: w.name}}}},
			{Name: "tls", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: secretOf(w.name)}}},
		},
	}
	m.Labels[LabelManagedBy] = ManagedBy
	if w.scheduler != "" {
		m.Labels[LabelScheduler] = w.scheduler
	}
	if b.measured() {
		m.Annotations["prometheus.io/scrape"] = "true"
		m.Annotations["prometheus.io/port"] = fmt.Sprint(portAdmin)
	}
	if p := b.config.Spec.PodDefaults; p != nil {
		spec.NodeSelector, spec.Tolerations, spec.Affinity = p.NodeSelector, p.Tolerations, p.Affinity
		for key, value := range p.Labels {
			if _, ours := m.Labels[key]; !ours {
				m.Labels[key] = value
			}
		}
		maps.Copy(m.Annotations, p.Annotations)
	}
	return corev1.PodTemplateSpec{ObjectMeta: m, Spec: spec}
}

// pullSecrets are those by which images are fetched.
func (b *builder) pullSecrets() (list []corev1.LocalObjectReference) {
	for _, name := range b.s.PullSecrets {
		list = append(list, corev1.LocalObjectReference{Name: name})
	}
	return list
}

// container is the one container of a workload's pod.
func (b *builder) container(w *workload) corev1.Container {
	no, yes := false, true
	tls := func(file string) string { return folderTLS + "/" + file }
	args := append(slices.Clone(w.does), "--file="+folderFile+"/"+fileName, "--pods="+b.config.Namespace, "--config-map="+w.namespace+"/"+w.name, fmt.Sprintf("--listen=:%d", w.port), fmt.Sprintf("--admin=:%d", portAdmin))
	if w.secure {
		args = append(args, "--tls-cert="+tls("tls.crt"), "--tls-key="+tls("tls.key"), "--tls-client-ca="+tls("ca.crt"))
	}
	ports := []corev1.ContainerPort{{Name: w.portName, ContainerPort: w.port}, {Name: "admin", ContainerPort: portAdmin}}
	if w.peers {
		args = append(args, fmt.Sprintf("--peers=%s.%s.svc:%d", podsOf(w.name), w.namespace, portPeers), fmt.Sprintf("--peer-listen=:%d", portPeers),
			"--peer-cert="+tls("tls.crt"), "--peer-key="+tls("tls.key"), "--peer-ca="+tls("ca.crt"))
		ports = append(ports, corev1.ContainerPort{Name: "peers", ContainerPort: portPeers})
	}
	args = append(args, fmt.Sprintf("--drain-delay=%ds", drainDelay), fmt.Sprintf("--drain-timeout=%ds", b.drain()), "--log-format=json", "--log-level="+logLevel(w.verbose))
	probe := func(path string, seconds, failures int32) *corev1.Probe {
		return &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: path, Port: intstr.FromString("admin")}}, PeriodSeconds: seconds, FailureThreshold: failures}
	}
	c := corev1.Container{
		Name: "sluice", Image: b.s.Image, Args: args, Ports: ports, Env: w.env, EnvFrom: w.envFrom,
		LivenessProbe: probe("/healthz", 10, 3), ReadinessProbe: probe("/readyz", 2, 2),
		VolumeMounts:             []corev1.VolumeMount{{Name: "gateway", MountPath: folderFile, ReadOnly: true}, {Name: "tls", MountPath: folderTLS, ReadOnly: true}},
		TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError, // why it ended, for kubectl describe and kubectl sluice doctor
		SecurityContext: &corev1.SecurityContext{AllowPrivilegeEscalation: &no, ReadOnlyRootFilesystem: &yes,
			Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}},
	}
	if p := b.config.Spec.PodDefaults; p != nil && p.Resources != nil {
		c.Resources = *p.Resources
	} else {
		c.Resources = corev1.ResourceRequirements{Requests: usualRequests()}
	}
	return c
}

// usualRequests are what a container asks of its node where the configuration says nothing of resources. Pods that ask for nothing get the
// processor when nobody else wants it, and are the first to go where memory is short, while every request waits for a picker.
func usualRequests() corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("50m"), corev1.ResourceMemory: resource.MustParse("128Mi")}
}

// spread keeps copies apart, by node and by zone, as far as that keeps none of them from running.
func spread(labels map[string]string, ours bool) []corev1.TopologySpreadConstraint {
	var list []corev1.TopologySpreadConstraint
	for _, key := range []string{corev1.LabelHostname, corev1.LabelTopologyZone} {
		c := corev1.TopologySpreadConstraint{MaxSkew: 1, TopologyKey: key, WhenUnsatisfiable: corev1.ScheduleAnyway,
			LabelSelector: &metav1.LabelSelector{MatchLabels: labels}}
		if ours {
			c.MatchLabelKeys = []string{appsv1.DefaultDeploymentUniqueLabelKey}
		}
		list = append(list, c)
	}
	return list
}

// roles lets a workload read pods, which are its endpoints, and its own files, and nothing else.
func (b *builder) roles(account, namespace string, files []string) {
	ns := b.config.Namespace
	subject := []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: account, Namespace: namespace}}
	b.add("v1", "ServiceAccount", &corev1.ServiceAccount{ObjectMeta: b.meta(namespace, account, "")})
	grant := func(in, name string, rules ...rbacv1.PolicyRule) {
		b.add("rbac.authorization.k8s.io/v1", "Role", &rbacv1.Role{ObjectMeta: b.meta(in, name, ""), Rules: rules})
		b.add("rbac.authorization.k8s.io/v1", "RoleBinding", &rbacv1.RoleBinding{ObjectMeta: b.meta(in, name, ""), Subjects: subject,
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name}})
	}
	look := []string{"get", "list", "watch"}
	pods := rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: look}
	maps := rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"configmaps"}, ResourceNames: files, Verbs: look}
	if namespace == ns {
		grant(ns, account, pods, maps)
		return
	}
	grant(ns, account, pods)
	grant(namespace, account, maps)
}

// maxTargets is how many Services a BackendTLSPolicy may be for.
const maxTargets = 16

// trust has Envoy check the certificate of whom it asks. Under whatever name it is asked, the certificate has one.
func (b *builder) trust(w *workload, services []string, cert Certificate) {
	chunk := 0
	for names := range slices.Chunk(services, maxTargets) {
		name := w.name
		if chunk++; chunk > 1 {
			name = label(fmt.Sprintf("%s-%d", w.name, chunk))
		}
		var targets []any
		for _, service := range names {
			targets = append(targets, map[string]any{"group": "", "kind": "Service", "name": service})
		}
		version := gatewayVersion
		if older := gatewayGroup + "/v1alpha3"; !b.ctx.knows("BackendTLSPolicy."+version) && b.ctx.knows("BackendTLSPolicy."+older) {
			version = older
		}
		b.addTree(version, "BackendTLSPolicy", b.meta(w.namespace, name, w.scheduler), map[string]any{
			"targetRefs": targets,
			"validation": map[string]any{
				"hostname":          cert.Names[0],
				"caCertificateRefs": []any{map[string]any{"group": "", "kind": "ConfigMap", "name": cert.ConfigMap}},
			}})
	}
}

// wall lets in whom a workload is for: Envoys of Envoy Gateway, of any Gateway, since routes of all may send to pools, if they show
// the certificate that only the right ones have; or clients; its peers; readers of metrics, and the controller.
func (b *builder) wall(w *workload, selector map[string]string) {
	inNamespace := func(name string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: name}}
	}
	open := func(port string, from ...networkingv1.NetworkPolicyPeer) networkingv1.NetworkPolicyIngressRule {
		p := intstr.FromString(port)
		return networkingv1.NetworkPolicyIngressRule{Ports: []networkingv1.NetworkPolicyPort{{Port: &p}}, From: from}
	}
	rules := []networkingv1.NetworkPolicyIngressRule{open(w.portName)}
	if w.secure {
		rules[0].From = []networkingv1.NetworkPolicyPeer{{NamespaceSelector: inNamespace(b.s.EnvoyNamespace), PodSelector: &metav1.LabelSelector{MatchLabels: proxies()}}}
	}
	if w.peers {
		rules = append(rules, open("peers", networkingv1.NetworkPolicyPeer{PodSelector: &metav1.LabelSelector{MatchLabels: selector}}))
	}
	admin := open("admin")
	if b.measured() {
		for _, ns := range b.s.MetricsNamespaces {
			admin.From = append(admin.From, networkingv1.NetworkPolicyPeer{NamespaceSelector: inNamespace(ns)})
		}
	}
	if !b.measured() || !slices.Contains(b.s.MetricsNamespaces, b.s.SystemNamespace) {
		// The controller asks what pickers know of pods.
		admin.From = append(admin.From, networkingv1.NetworkPolicyPeer{NamespaceSelector: inNamespace(b.s.SystemNamespace),
			PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{labelApp: Controller}}})
	}
	rules = append(rules, admin)
	b.add("networking.k8s.io/v1", "NetworkPolicy", &networkingv1.NetworkPolicy{ObjectMeta: b.meta(w.namespace, w.name, w.scheduler), Spec: networkingv1.NetworkPolicySpec{
		PodSelector: metav1.LabelSelector{MatchLabels: selector}, PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}, Ingress: rules}})
}

// proxies are the labels of all Envoys that Envoy Gateway runs.
func proxies() map[string]string {
	return map[string]string{LabelManagedBy: "envoy-gateway", "app.kubernetes.io/component": "proxy"}
}

// envoys are the labels of this gateway's Envoys. A name too long for a label stands in none.
func (b *builder) envoys() map[string]string {
	labels := map[string]string{labelEnvoyGwNs: b.s.SystemNamespace}
	if len(b.config.Name) <= maxLabel {
		labels[labelEnvoyGateway] = b.config.Name
	}
	return labels
}

// monitor has the Prometheus operator read a workload's metrics.
func (b *builder) monitor(w *workload) {
	b.addTree("monitoring.coreos.com/v1", "ServiceMonitor", b.meta(w.namespace, w.name, w.scheduler), map[string]any{
		"endpoints": []any{map[string]any{"port": "admin", "path": "/metrics"}},
		"selector":  map[string]any{"matchLabels": map[string]any{labelApp: w.name}},
	})
}

// addTree plans an object of a kind that no type is here for.
func (b *builder) addTree(apiVersion, kind string, m metav1.ObjectMeta, spec map[string]any) {
	b.add(apiVersion, kind, &foreign{ObjectMeta: m, Spec: spec})
}

// foreign is an object of a kind that no type is here for.
type foreign struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              map[string]any `json:"spec"`
}

// joined writes names for people, at most a few of them.
func joined(names []string) string {
	const most = 5
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}

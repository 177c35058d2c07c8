{{/* The names that users of the reference know. */}}
{{- define "sluice.name" -}}inference-gateway-controller{{- end }}

{{- define "sluice.extensionService" -}}inference-gateway-extension{{- end }}

{{- define "sluice.selectorLabels" -}}
app: {{ include "sluice.name" . }}
app.kubernetes.io/name: sluice
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/* The labels of every object; the common ones can't replace those that something is found by. */}}
{{- define "sluice.labels" -}}
{{- $own := dict "helm.sh/chart" (printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63) "app.kubernetes.io/managed-by" .Release.Service "app.kubernetes.io/version" .Chart.AppVersion "app.kubernetes.io/part-of" "sluice" }}
{{- $own = mergeOverwrite $own (include "sluice.selectorLabels" . | fromYaml) }}
{{- mergeOverwrite (deepCopy .Values.commonLabels) $own | toYaml }}
{{- end }}

{{- define "sluice.image" -}}
{{- $i := .Values.image }}
{{- $name := ternary $i.repository (printf "%s/%s" $i.registry $i.repository) (empty $i.registry) }}
{{- if $i.digest }}{{ $name }}@{{ $i.digest }}{{ else }}{{ $name }}:{{ $i.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{- define "sluice.envoyGatewayNamespace" -}}{{ .Values.envoyGateway.namespace | default .Release.Namespace }}{{- end }}
{{- define "sluice.envoyNamespace" -}}{{ .Values.envoy.namespace | default (include "sluice.envoyGatewayNamespace" .) }}{{- end }}
{{- define "sluice.metricsNamespaces" -}}{{ .Values.metrics.namespaces | default (list .Release.Namespace) | toJson }}{{- end }}

{{/* Values for Envoy Gateway's own chart. */}}
{{- define "sluice.envoyGatewayValues" -}}
config:
  envoyGateway:
    gateway:
      controllerName: {{ .Values.gatewayClass.controllerName }}
    extensionManager:
      backendResources:
        - group: inference.networking.k8s.io
          version: v1
          kind: InferencePool
      hooks:
        xdsTranslator:
          post: [Route, Translation]
          translation:
            listener: {includeAll: true}
            route: {includeAll: true}
            cluster: {includeAll: true}
            secret: {includeAll: true}
      maxMessageSize: 256Mi
      service:
        fqdn:
          hostname: {{ include "sluice.extensionService" . }}.{{ .Release.Namespace }}.svc
          port: 9443
        tls:
          certificateRef:
            name: {{ include "sluice.extensionService" . }}-ca
            namespace: {{ .Release.Namespace }}
          clientCertificateRef:
            name: {{ include "sluice.extensionService" . }}-client
            namespace: {{ .Release.Namespace }}
{{- end }}

{{/* The rights of the controller, of the kind ClusterRole or Role, from the manifest that its code makes. */}}
{{- define "sluice.rules" -}}
{{- $kind := index . 1 }}
{{- range splitList "\n---\n" ((index . 0).Files.Get "files/controller.yaml") }}
{{- $doc := fromYaml . }}
{{- if eq (default "" $doc.kind) $kind }}{{ dict "rules" $doc.rules | toYaml }}{{ end }}
{{- end }}
{{- end }}

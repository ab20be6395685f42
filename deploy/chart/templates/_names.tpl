{{- define "springtide.selector" -}}
app.kubernetes.io/name: springtide
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
app.kubernetes.io/component: {{ .role }}
{{- end -}}

{{- define "springtide.labels" -}}
{{ include "springtide.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version }}
{{- end -}}

{{- /* Metadata of the namespaced object springtide-<role>. */ -}}
{{- define "springtide.metadata" -}}
name: springtide-{{ .role }}
namespace: {{ .root.Release.Namespace | quote }}
labels:
  {{- include "springtide.labels" . | nindent 2 }}
{{- end -}}

{{- define "springtide.image" -}}
{{- $image := .root.Values.image -}}
{{- $repository := .values.imageRepository | default $image.repository -}}
{{- if $image.digest -}}
{{ $repository }}@{{ $image.digest }}
{{- else -}}
{{ $repository }}:{{ $image.tag | default .root.Chart.AppVersion }}
{{- end -}}
{{- end -}}

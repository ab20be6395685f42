{{- define "springtide.daemonSet" -}}
apiVersion: apps/v1
kind: DaemonSet
metadata:
  {{- include "springtide.metadata" . | nindent 2 }}
spec:
  selector:
    matchLabels:
      {{- include "springtide.selector" . | nindent 6 }}
  updateStrategy:
    rollingUpdate: {maxUnavailable: 10%}
  template:
    metadata:
      {{- include "springtide.podMetadata" . | nindent 6 }}
    spec:
      {{- include "springtide.podSpec" . | nindent 6 }}
{{- end -}}

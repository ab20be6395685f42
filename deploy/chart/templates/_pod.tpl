{{- /*
The pod of a role. env, mounts, volumes, hostPID and
capabilities are what only this role has. The pod and container
security context is that of the level `restricted`, except for roles on nodes.
*/ -}}
{{- define "springtide.podMetadata" -}}
labels:
  {{- include "springtide.selector" . | nindent 2 }}
annotations:
  # A change of what the role reads restarts it.
  checksum/settings: {{ include "springtide.settings" . | sha256sum }}
  {{- if include "springtide.readsSchedulerConfig" . }}
  checksum/scheduler: {{ toJson .root.Values.schedulerConfig | sha256sum }}
  {{- end }}
{{- end -}}

{{- define "springtide.podSpec" -}}
{{- $isOnNodes := eq .declared.kind "DaemonSet" -}}
{{- $kafka := has "kafka" .declared.sections | ternary (include "springtide.kafkaAccess" .root | fromYaml) dict -}}
serviceAccountName: springtide-{{ .role }}
automountServiceAccountToken: {{ .declared.api | default false }}
enableServiceLinks: false
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets: {{ toJson . }}
{{- end }}
{{- if $isOnNodes }}
priorityClassName: system-node-critical
{{- if .hostPID }}
hostPID: true
{{- end }}
nodeSelector: {kubernetes.io/os: linux}
tolerations:
  - {operator: Exists}
{{- else }}
{{- with .root.Values.priorityClassName }}
priorityClassName: {{ quote . }}
{{- end }}
nodeSelector: {{ mergeOverwrite (dict "kubernetes.io/os" "linux") (.root.Values.nodeSelector | default dict) | toJson }}
{{- with .root.Values.tolerations }}
tolerations: {{ toJson . }}
{{- end }}
securityContext:
  runAsNonRoot: true
  {{- /* `int`: Helm writes large numbers of a file of values, such as OpenShift's users, as floats. */}}
  {{- with .root.Values.runAsUser }}
  runAsUser: {{ int . }}
  runAsGroup: {{ int . }}
  fsGroup: {{ int . }}
  {{- end }}
  seccompProfile: {type: RuntimeDefault}
topologySpreadConstraints:
  {{- range list "topology.kubernetes.io/zone" "kubernetes.io/hostname" }}
  - maxSkew: 1
    topologyKey: {{ . }}
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "springtide.selector" $ | nindent 8 }}
  {{- end }}
{{- end }}
terminationGracePeriodSeconds: {{ .grace }}
containers:
  - name: {{ .role }}
    image: {{ include "springtide.image" . | quote }}
    imagePullPolicy: {{ .root.Values.image.pullPolicy }}
    command: {{ .command | default (list "springtide" .role) | toJson }}
    env:
      - {name: SPRINGTIDE_CONFIG, value: /etc/springtide/settings/springtide.yaml}
      {{- if and $kafka.userSecret $kafka.mechanism }}
      - name: SPRINGTIDE_KAFKA_SASL_PASSWORD
        valueFrom: {secretKeyRef: {name: {{ include "springtide.kafkaUser" . | quote }}, key: password}}
      {{- end }}
      {{- with .env }}
      {{- . | nindent 6 }}
      {{- end }}
    {{- if and .root.Values.tracing.secret (has "tracing" .declared.sections) }}
    envFrom: [{secretRef: {name: {{ quote .root.Values.tracing.secret }}}}]
    {{- end }}
    {{- if .declared.ports }}
    ports: {{ include "springtide.ports" . }}
    {{- include "springtide.probes" . | nindent 4 }}
    {{- end }}
    securityContext:
      {{- if $isOnNodes }}
      # Files of cgroups, and /run/springtide, are root's.
      runAsUser: 0
      seccompProfile: {type: RuntimeDefault}
      {{- end }}
      allowPrivilegeEscalation: false
      readOnlyRootFilesystem: true
      capabilities: {drop: [ALL]{{ with .capabilities }}, add: {{ toJson . }}{{ end }}}
    resources: {{ toJson .values.resources }}
    volumeMounts:
      - {name: settings, mountPath: /etc/springtide/settings, readOnly: true}
      {{- if not $isOnNodes }}
      - {name: tmp, mountPath: /tmp}
      {{- end }}
      {{- if $kafka.caSecret }}
      - {name: kafka-ca, mountPath: /etc/springtide/kafka-ca, readOnly: true}
      {{- end }}
      {{- if include "springtide.hasKafkaCertificate" . }}
      - {name: kafka-user, mountPath: /etc/springtide/kafka-user, readOnly: true}
      {{- end }}
      {{- if include "springtide.readsSchedulerConfig" . }}
      - {name: scheduler, mountPath: /etc/springtide/scheduler, readOnly: true}
      {{- end }}
      {{- if .values.secret }}
      - {name: secret, mountPath: /etc/springtide/secret, readOnly: true}
      {{- end }}
      {{- with .mounts }}
      {{- . | nindent 6 }}
      {{- end }}
volumes:
  - {name: settings, configMap: {name: springtide-{{ .role }}}}
  {{- if not $isOnNodes }}
  - {name: tmp, emptyDir: {}}
  {{- end }}
  {{- with $kafka.caSecret }}
  - {name: kafka-ca, secret: {secretName: {{ quote . }}}}
  {{- end }}
  {{- if include "springtide.hasKafkaCertificate" . }}
  - {name: kafka-user, secret: {secretName: {{ include "springtide.kafkaUser" . | quote }}}}
  {{- end }}
  {{- if include "springtide.readsSchedulerConfig" . }}
  - {name: scheduler, configMap: {name: springtide-scheduler}}
  {{- end }}
  {{- with .values.secret }}
  - {name: secret, secret: {secretName: {{ quote . }}}}
  {{- end }}
  {{- with .volumes }}
  {{- . | nindent 2 }}
  {{- end }}
{{- end -}}

{{- define "springtide.hasKafkaCertificate" -}}
{{- $kafka := include "springtide.kafkaAccess" .root | fromYaml -}}
{{- if and (has "kafka" .declared.sections) $kafka.userSecret (not $kafka.mechanism) }}yes{{ end -}}
{{- end -}}

{{- define "springtide.readsSchedulerConfig" -}}
{{- if and .root.Values.schedulerConfig (has "extender" .declared.sections) }}yes{{ end -}}
{{- end -}}

{{- /* A role is ready when it has caught up; while it reads, it is alive and not ready. */ -}}
{{- define "springtide.probes" -}}
{{- $port := (first .declared.ports).name -}}
{{- $isSecure := or (eq $port "https") (and (eq .role "extender") (ne .root.Values.extender.tls.secretName "")) -}}
{{- $scheme := ternary "HTTPS" "HTTP" $isSecure -}}
startupProbe:
  httpGet: {path: /healthz, port: {{ $port }}, scheme: {{ $scheme }}}
  periodSeconds: 2
  failureThreshold: 60
livenessProbe:
  httpGet: {path: /healthz, port: {{ $port }}, scheme: {{ $scheme }}}
  periodSeconds: 30
  timeoutSeconds: 10
readinessProbe:
  httpGet: {path: /readyz, port: {{ $port }}, scheme: {{ $scheme }}}
  periodSeconds: 5
  timeoutSeconds: 5
{{- end -}}

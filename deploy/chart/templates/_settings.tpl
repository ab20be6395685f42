{{- /* Namespace of the ConfigMaps with the policy and the DeschedulerConfiguration. */ -}}
{{- define "springtide.configNamespace" -}}
{{- dig "kubernetes" "config_namespace" "" .Values.settings | default .Release.Namespace -}}
{{- end -}}

{{- /* The ports of a role's container, as JSON. */ -}}
{{- define "springtide.ports" -}}
{{- $ports := list -}}
{{- range .declared.ports -}}
{{- $number := dig .section .key .number $.root.Values.settings -}}
{{- $ports = append $ports (dict "name" .name "containerPort" $number) -}}
{{- end -}}
{{- toJson $ports -}}
{{- end -}}

{{- /* Number of the first of them. */ -}}
{{- define "springtide.port" -}}
{{- (include "springtide.ports" . | fromJsonArray | first).containerPort -}}
{{- end -}}

{{- /*
What the chart decides: where it mounts files, and the names of its own objects. These win over
values, so that the two cannot contradict each other.
*/ -}}
{{- define "springtide.ownSettings" -}}
{{- $values := .root.Values -}}
{{- $kafka := include "springtide.kafkaAccess" .root | fromYaml -}}
kafka:
  {{- if $values.kafka.strimzi.enabled }}
  security_protocol: SASL_SSL
  {{- end }}
  {{- if $kafka.caSecret }}
  ssl_ca_file: {{ printf "/etc/springtide/kafka-ca/%s" $kafka.caKey | quote }}
  {{- end }}
  {{- if $kafka.userSecret }}
  {{- if $kafka.mechanism }}
  sasl_mechanism: {{ $kafka.mechanism }}
  sasl_username: {{ include "springtide.kafkaUsername" . | quote }}
  {{- else }}
  ssl_cert_file: /etc/springtide/kafka-user/user.crt
  ssl_key_file: /etc/springtide/kafka-user/user.key
  {{- end }}
  {{- end }}
kubernetes:
  namespace: {{ .root.Release.Namespace | quote }}
  config_namespace: {{ include "springtide.configNamespace" .root | quote }}
exporter:
  cgroup_root: /host/cgroup
  proc_root: /host/proc
  sys_root: /host/sys
{{- if $values.undo }}
actuator: {mode: observe}
evictor: {mode: observe}
node_actuator: {mode: "off", features: {}}
{{- end }}
worker:
  supervise: false
  data_dir: /var/lib/springtide
archive:
  directory: /var/lib/springtide/archive
extender:
  {{- if $values.undo }}
  mode: observe
  {{- end }}
  {{- if $values.extender.tls.secretName }}
  tls_cert_file: /etc/springtide/tls/tls.crt
  tls_key_file: /etc/springtide/tls/tls.key
  {{- if $values.extender.tls.clientCertificates }}
  tls_client_ca_file: /etc/springtide/tls/ca.crt
  {{- end }}
  {{- end }}
  {{- if $values.schedulerConfig }}
  scheduler_config_file: /etc/springtide/scheduler/scheduler.yaml
  {{- end }}
webhook:
  {{- if $values.undo }}
  mode: observe
  {{- end }}
  tls_cert_file: /etc/springtide/tls/tls.crt
  tls_key_file: /etc/springtide/tls/tls.key
{{- end -}}

{{- /*
How roles connect to Kafka: Secrets, and the SASL mechanism or nothing. Strimzi makes these Secrets,
and names them so.
*/ -}}
{{- define "springtide.kafkaAccess" -}}
{{- $kafka := .Values.kafka -}}
{{- $isStrimzi := $kafka.strimzi.enabled -}}
{{- $ca := ternary (printf "%s-cluster-ca-cert" $kafka.strimzi.cluster) "" $isStrimzi -}}
caSecret: {{ $kafka.caSecret | default $ca | quote }}
caKey: {{ quote $kafka.caKey }}
userSecret: {{ $kafka.userSecret | default (ternary "springtide-ROLE" "" $isStrimzi) | quote }}
mechanism: {{ ternary "SCRAM-SHA-512" (dig "kafka" "sasl_mechanism" "" .Values.settings | default "") $isStrimzi | quote }}
{{- end -}}

{{- define "springtide.kafkaUser" -}}
{{- (include "springtide.kafkaAccess" .root | fromYaml).userSecret | replace "ROLE" .role -}}
{{- end -}}

{{- /* The SASL user of a role; with Strimzi that of its KafkaUser, whatever its Secret is called. */ -}}
{{- define "springtide.kafkaUsername" -}}
{{- if .root.Values.kafka.strimzi.enabled -}}
springtide-{{ .role }}
{{- else -}}
{{- dig "kafka" "sasl_username" "" .root.Values.settings | default (include "springtide.kafkaUser" .) -}}
{{- end -}}
{{- end -}}

{{- /* The settings file of a role, as JSON, which is YAML: `toYaml` writes large numbers as floats. */ -}}
{{- define "springtide.settings" -}}
{{- $own := include "springtide.ownSettings" . | fromYaml -}}
{{- $read := dict -}}
{{- range $name := .declared.sections -}}
{{- $section := deepCopy (index $.root.Values.settings $name | default dict) -}}
{{- range $key, $value := index $own $name | default dict -}}
{{- $_ := set $section $key $value -}}
{{- end -}}
{{- with $section -}}
{{- $_ := set $read $name . -}}
{{- end -}}
{{- end -}}
{{- toPrettyJson $read -}}
{{- end -}}

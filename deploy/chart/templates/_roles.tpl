{{- /*
The roles. kind: of the workload. sections: of the settings that the role reads; a change of others
does not restart it. port: number of its page, unless the settings have another, and the key of it.
probes: whether it answers at /healthz and /readyz. api: whether it talks to the API server.
*/ -}}
{{- define "springtide.roles" -}}
exporter:
  {kind: DaemonSet, values: exporter, sections: [kafka, exporter, log],
   port: {number: 9101, section: exporter, key: metrics_port}}
node-actuator:
  {kind: DaemonSet, values: nodeActuator, sections: [kafka, exporter, node_actuator, log],
   port: {number: 9110, section: node_actuator, key: metrics_port}, probes: true}
worker:
  {kind: StatefulSet, values: worker, sections: [kafka, worker, model, log],
   port: {number: 9102, section: worker, key: metrics_port}, probes: true}
watcher:
  {kind: Deployment, values: watcher, sections: [kafka, kubernetes, watcher, log], api: true,
   port: {number: 9103, section: watcher, key: metrics_port}, probes: true}
provider:
  {kind: Deployment, values: provider, sections: [kafka, kubernetes, provider, log], api: true,
   port: {number: 9105, section: provider, key: port}, probes: true}
actuator:
  {kind: Deployment, values: actuator, sections: [kafka, kubernetes, actuator, extender, log],
   api: true, port: {number: 9104, section: actuator, key: metrics_port}, probes: true}
planner:
  {kind: Deployment, values: planner, sections: [kafka, kubernetes, planner, extender, log],
   api: true, port: {number: 9109, section: planner, key: metrics_port}, probes: true}
evictor:
  {kind: Deployment, values: evictor, sections: [kafka, kubernetes, evictor, log], api: true,
   port: {number: 9107, section: evictor, key: metrics_port}, probes: true}
extender:
  {kind: Deployment, values: extender, sections: [kafka, extender, log],
   port: {number: 8888, section: extender, key: port}, probes: true}
notifier:
  {kind: Deployment, values: notifier, sections: [kafka, notifier, log],
   port: {number: 9108, section: notifier, key: metrics_port}}
archive:
  {kind: Deployment, values: archive, sections: [kafka, archive, log],
   port: {number: 9111, section: archive, key: metrics_port}}
{{- end -}}

{{- /* Those that are switched on, as a mapping. */ -}}
{{- define "springtide.enabled" -}}
{{- range $role, $declared := include "springtide.roles" . | fromYaml }}
{{- if (index $.Values $declared.values).enabled }}
{{ $role }}: {{ toJson $declared }}
{{- end }}
{{- end }}
{{- end -}}

{{- /*
The roles. kind: of the workload. sections: of the settings that the role reads; a change of others
does not restart it. ports: name, number unless the settings have another, and the key of it; the
first one answers probes, and `metrics` has the page of metrics alone. api: whether it talks to the
API server.
*/ -}}
{{- define "springtide.roles" -}}
exporter:
  {kind: DaemonSet, values: exporter, sections: [kafka, exporter, log],
   ports: [{name: metrics, number: 9101, section: exporter, key: metrics_port}]}
node-actuator:
  {kind: DaemonSet, values: nodeActuator, sections: [kafka, exporter, node_actuator, tracing, log],
   ports: [{name: metrics, number: 9110, section: node_actuator, key: metrics_port}]}
worker:
  {kind: StatefulSet, values: worker, sections: [kafka, worker, model, tracing, log],
   ports: [{name: metrics, number: 9102, section: worker, key: metrics_port}]}
watcher:
  {kind: Deployment, values: watcher, sections: [kafka, kubernetes, watcher, log], api: true,
   ports: [{name: metrics, number: 9103, section: watcher, key: metrics_port}]}
provider:
  {kind: Deployment, values: provider, sections: [kafka, kubernetes, provider, log], api: true,
   ports: [{name: metrics, number: 9105, section: provider, key: port}]}
actuator:
  {kind: Deployment, values: actuator, sections: [kafka, kubernetes, actuator, extender, tracing, log],
   api: true, ports: [{name: metrics, number: 9104, section: actuator, key: metrics_port}]}
planner:
  {kind: Deployment, values: planner, sections: [kafka, kubernetes, planner, extender, tracing, log],
   api: true, ports: [{name: metrics, number: 9109, section: planner, key: metrics_port}]}
evictor:
  {kind: Deployment, values: evictor, sections: [kafka, kubernetes, evictor, tracing, log], api: true,
   ports: [{name: metrics, number: 9107, section: evictor, key: metrics_port}]}
extender:
  {kind: Deployment, values: extender, sections: [kafka, extender, tracing, log],
   ports: [{name: http, number: 8888, section: extender, key: port}]}
notifier:
  {kind: Deployment, values: notifier, sections: [kafka, notifier, log],
   ports: [{name: metrics, number: 9108, section: notifier, key: metrics_port}]}
archive:
  {kind: Deployment, values: archive, sections: [kafka, archive, log],
   ports: [{name: metrics, number: 9111, section: archive, key: metrics_port}]}
webhook:
  {kind: Deployment, values: webhook, sections: [kubernetes, webhook, log], api: true,
   ports: [{name: https, number: 9443, section: webhook, key: port},
           {name: metrics, number: 9112, section: webhook, key: metrics_port}]}
{{- end -}}

{{- /* Those that are switched on, as a mapping. */ -}}
{{- define "springtide.enabled" -}}
{{- range $role, $declared := include "springtide.roles" . | fromYaml }}
{{- if (index $.Values $declared.values).enabled }}
{{ $role }}: {{ toJson $declared }}
{{- end }}
{{- end }}
{{- end -}}

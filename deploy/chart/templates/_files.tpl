{{- /*
The objects of a file of the chart that kubectl could apply as it is: with the namespaces and names
of the values, and with labels. JSON: {objects: [...]}.
*/ -}}
{{- define "springtide.objectsOf" -}}
{{- $settings := .root.Values.settings -}}
{{- $text := .root.Files.Get .file | required .file -}}
{{- /* First marks, then values: a value may contain a name that another one replaces. */ -}}
{{- $names := dict
  "springtide-system" .root.Release.Namespace
  "koordinator-system" (include "springtide.configNamespace" .root)
  "slo-controller-config" (dig "kubernetes" "config_name" "slo-controller-config" $settings)
  "koord-descheduler-config" (dig "kubernetes" "descheduler_config_name" "koord-descheduler-config" $settings)
  "springtide-stop-evictions" (dig "evictor" "stop_config_map" "springtide-stop-evictions" $settings)
  "springtide-webhook-tls" .root.Values.webhook.tls.secretName
-}}
{{- range $name, $_ := $names -}}
{{- $text = $text | replace $name (printf "<%s>" (sha256sum $name)) -}}
{{- end -}}
{{- $objects := list -}}
{{- range $document := regexSplit "(?m)^---$" $text -1 -}}
{{- /* As JSON, in which a value such as 123 stays a text. */ -}}
{{- $json := fromYaml $document | toRawJson -}}
{{- range $name, $value := $names -}}
{{- $json = $json | replace (printf "<%s>" (sha256sum $name)) $value -}}
{{- end -}}
{{- $object := fromJson $json -}}
{{- $_ := set $object.metadata "labels" (include "springtide.labels" $ | fromYaml) -}}
{{- $objects = append $objects $object -}}
{{- end -}}
{{- dict "objects" $objects | toJson -}}
{{- end -}}

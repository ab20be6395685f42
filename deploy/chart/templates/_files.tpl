{{- /*
The objects of a file of the chart that kubectl could apply as it is: with the namespaces and names
of the values, and with labels. JSON: {objects: [...]}.
*/ -}}
{{- define "springtide.objectsOf" -}}
{{- $settings := .root.Values.settings -}}
{{- $text := .root.Files.Get .file | required .file -}}
{{- $text = $text | replace "springtide-system" .root.Release.Namespace -}}
{{- $text = $text | replace "koordinator-system" (include "springtide.configNamespace" .root) -}}
{{- $text = $text | replace "slo-controller-config" (dig "kubernetes" "config_name" "slo-controller-config" $settings) -}}
{{- $text = $text | replace "koord-descheduler-config" (dig "kubernetes" "descheduler_config_name" "koord-descheduler-config" $settings) -}}
{{- $text = $text | replace "springtide-stop-evictions" (dig "evictor" "stop_config_map" "springtide-stop-evictions" $settings) -}}
{{- $text = $text | replace "springtide-webhook-tls" .root.Values.webhook.tls.secretName -}}
{{- $objects := list -}}
{{- range $document := regexSplit "(?m)^---$" $text -1 -}}
{{- $object := fromYaml $document -}}
{{- $_ := set $object.metadata "labels" (include "springtide.labels" $ | fromYaml) -}}
{{- $objects = append $objects $object -}}
{{- end -}}
{{- dict "objects" $objects | toJson -}}
{{- end -}}

{{/* What one value alone cannot show to be wrong. */}}
{{- define "magnitude.refuse" -}}
{{- $from := .Values.model.from -}}
{{- if and (eq $from "image") (semverCompare "<1.31.0-0" .Capabilities.KubeVersion.Version) -}}
{{- fail (printf "model.from is image; it needs Kubernetes 1.31 or newer, and this is %s" .Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- if and .Values.autoscaling.enabled .Values.keda.enabled -}}
{{- fail "autoscaling.enabled and keda.enabled are both true; one scaler can move the replicas" -}}
{{- end -}}
{{- range $scaler := list "autoscaling" "keda" -}}
{{- $given := get $.Values $scaler -}}
{{- if gt (int64 $given.minReplicas) (int64 $given.maxReplicas) -}}
{{- fail (printf "%s.minReplicas is %d; it must not exceed %s.maxReplicas (%d)" $scaler (int64 $given.minReplicas) $scaler (int64 $given.maxReplicas)) -}}
{{- end -}}
{{- end -}}
{{- $seen := dict -}}
{{- range $name, $port := .Values.ports -}}
{{- if hasKey $seen (toString $port) -}}
{{- fail (printf "ports.%s is %d; ports.%s is the same" $name (int64 $port) (get $seen (toString $port))) -}}
{{- end -}}
{{- $_ := set $seen (toString $port) $name -}}
{{- end -}}
{{- if and .Values.tls.clientCa (not .Values.tls.secretName) -}}
{{- fail "tls.clientCa is true; it needs tls.secretName" -}}
{{- end -}}
{{- end -}}

{{/* The server's config file. */}}

{{/* Helm reads numbers as floats; whole ones are written as such. JSON's strings and truth values are TOML's too. */}}
{{- define "magnitude.toml" -}}
{{- if and (kindIs "float64" .) (eq (floor .) .) }}{{ int64 . }}{{ else }}{{ toJson . }}{{ end -}}
{{- end -}}

{{- define "magnitude.modelPath" -}}
{{- if eq .Values.model.from "pull" -}}
/models/models/{{ .Values.model.file }}
{{- else -}}
/models/{{ .Values.model.file }}
{{- end -}}
{{- end -}}

{{/* Settings that the chart decides, then those of `settings`. */}}
{{- define "magnitude.settings" -}}
{{- $chart := dict "model" (include "magnitude.modelPath" .) "model_name" .Values.model.name -}}
{{- $_ := set $chart "cache_dir" (ternary "/var/lib/magnitude" "/var/cache/magnitude" .Values.state.enabled) -}}
{{- $_ := set $chart "host" .Values.host -}}
{{- $_ := set $chart "port" .Values.ports.grpc -}}
{{- $_ := set $chart "metrics_port" .Values.ports.metrics -}}
{{- $_ := set $chart "grace_seconds" .Values.termination.graceSeconds -}}
{{- if .Values.state.enabled -}}
{{- $_ := set $chart "state_dir" "/var/lib/magnitude" -}}
{{- end -}}
{{- if .Values.tls.secretName -}}
{{- $_ := set $chart "tls_certificate" "/etc/magnitude-tls/tls.crt" -}}
{{- $_ := set $chart "tls_key" "/etc/magnitude-tls/tls.key" -}}
{{- if .Values.tls.clientCa -}}
{{- $_ := set $chart "tls_client_ca" "/etc/magnitude-tls/ca.crt" -}}
{{- end -}}
{{- end -}}
{{- if .Values.auth.secretName -}}
{{- $_ := set $chart "token_file" (printf "/etc/magnitude-tokens/%s" .Values.auth.key) -}}
{{- end -}}
{{- if include "magnitude.guarded" . -}}
{{- $_ := set $chart "health_port" .Values.ports.health -}}
{{- end -}}
{{- if not (or (hasKey .Values.settings "memory_fraction") (hasKey .Values.settings "budget_bytes")) -}}
{{- $_ := set $chart "memory_fraction" (include "magnitude.memoryFraction" . | float64) -}}
{{- end -}}
{{- if not (hasKey .Values.settings "log_format") -}}
{{- $_ := set $chart "log_format" "json" -}}
{{- end -}}
{{- range $name := keys $chart | sortAlpha }}
{{ $name }} = {{ include "magnitude.toml" (get $chart $name) }}
{{- end }}
{{- range $name := keys .Values.settings | sortAlpha }}
{{ $name }} = {{ include "magnitude.toml" (get $.Values.settings $name) }}
{{- end }}
{{- end -}}

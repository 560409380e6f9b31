{{/* Memory, time and the start-up budget, computed. All sums are in whole MiB. */}}

{{/* "2Gi" → 2048. The schema admits whole Mi, Gi and Ti only. */}}
{{- define "magnitude.mebibytes" -}}
{{- $count := regexFind "^[0-9]+" . | int64 -}}
{{- if hasSuffix "Ti" . }}{{ mul $count 1048576 }}{{ else if hasSuffix "Gi" . }}{{ mul $count 1024 }}{{ else }}{{ $count }}{{ end -}}
{{- end -}}

{{/* The pod's memory. Shared memory counts: what lies in /dev/shm is charged to the pod. The server needs 150 MiB for
itself and some scratch memory for its steps; a twentieth is left for what nobody counts. */}}
{{- define "magnitude.memoryMebibytes" -}}
{{- if .Values.memory -}}
{{- include "magnitude.mebibytes" .Values.memory -}}
{{- else -}}
{{- $model := include "magnitude.mebibytes" .Values.model.size | int64 -}}
{{- $cache := include "magnitude.mebibytes" .Values.cacheSize | int64 -}}
{{- $shared := include "magnitude.mebibytes" .Values.shmSize | int64 -}}
{{- add (div (mul (add $model $cache 384) 105) 100) $shared 1 -}}
{{- end -}}
{{- end -}}

{{/* The share of the free memory that the server may plan with: all but shared memory, less a twentieth. As a share it
cannot be refused at the start, however much of the page cache still counts as used. */}}
{{- define "magnitude.memoryFraction" -}}
{{- $memory := include "magnitude.memoryMebibytes" . | int64 -}}
{{- $shared := include "magnitude.mebibytes" .Values.shmSize | int64 -}}
{{- if le $memory (add $shared 384) -}}
{{- fail (printf "memory is %dMi; it must hold shmSize (%dMi) and 384Mi for the server" $memory $shared) -}}
{{- end -}}
{{- printf "0.%04d" (div (mul 9500 (sub $memory $shared)) $memory) -}}
{{- end -}}

{{/* Probes until a start has failed: the whole file read twice (once for its hash) at the slowest speed, and never less
than `startupSecondsMin`. */}}
{{- define "magnitude.startupFailures" -}}
{{- $model := include "magnitude.mebibytes" .Values.model.size | int64 -}}
{{- $seconds := add 60 (div (mul 2 $model) (int64 .Values.model.readMiBPerSecond)) -}}
{{- $period := int64 .Values.probes.periodSeconds -}}
{{- div (add (max $seconds (int64 .Values.probes.startupSecondsMin)) (sub $period 1)) $period -}}
{{- end -}}

{{/* preStop, then the server's grace, then ten seconds for its last words. */}}
{{- define "magnitude.terminationSeconds" -}}
{{- add (int64 .Values.termination.preStopSeconds) (int64 .Values.termination.graceSeconds) 10 -}}
{{- end -}}

{{/* Like `requests`, so that the pod is Guaranteed: nobody takes its processors or evicts it first. */}}
{{- define "magnitude.resources" -}}
{{- $gpu := .Values.gpu -}}
{{- range $what := list "requests" "limits" }}
{{ $what }}:
  cpu: {{ $.Values.cpu | int64 }}
  memory: {{ include "magnitude.memoryMebibytes" $ }}Mi
  {{- if $gpu.count }}
  {{ $gpu.resource }}: {{ $gpu.count | int64 }}
  {{- end }}
{{- end }}
{{- end -}}

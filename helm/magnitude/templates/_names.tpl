{{/* Names and labels. */}}

{{- define "magnitude.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 48 | trimSuffix "-" -}}
{{- end -}}

{{/* The release, with the chart's name where the release does not contain it; room is left for suffixes. */}}
{{- define "magnitude.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 48 | trimSuffix "-" -}}
{{- else if contains (include "magnitude.name" .) .Release.Name -}}
{{- .Release.Name | trunc 48 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "magnitude.name" .) | trunc 48 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "magnitude.selectorLabels" -}}
app.kubernetes.io/name: {{ include "magnitude.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* Of the pod of `helm test`, which no Service and no policy may take for one that serves. */}}
{{- define "magnitude.testLabels" -}}
app.kubernetes.io/name: {{ include "magnitude.name" . }}-test
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "magnitude.labels" -}}
{{ include "magnitude.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "magnitude.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "magnitude.fullname" .) -}}
{{- else -}}
{{- .Values.serviceAccount.name | default "default" -}}
{{- end -}}
{{- end -}}

{{- define "magnitude.image" -}}
{{- $image := .Values.image -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $image.repository $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $image.repository ($image.tag | default .Chart.AppVersion) -}}
{{- end -}}
{{- end -}}

{{/* What runs the pods; `dict "kind" "name" "apiVersion"` of a scale target. */}}
{{- define "magnitude.workload" -}}
apiVersion: apps/v1
kind: {{ ternary "StatefulSet" "Deployment" .Values.state.enabled }}
name: {{ include "magnitude.fullname" . }}
{{- end -}}

{{/* The pod of the Deployment and of the StatefulSet. */}}

{{- define "magnitude.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/* Whether callers must show something, which the kubelet's gRPC probes cannot: they know neither TLS nor tokens. */}}
{{- define "magnitude.guarded" -}}
{{- if or .Values.tls.secretName .Values.auth.secretName }}yes{{ end -}}
{{- end -}}

{{- define "magnitude.probePort" -}}
{{- if include "magnitude.guarded" . }}{{ .Values.ports.health | int64 }}{{ else }}{{ .Values.ports.grpc | int64 }}{{ end -}}
{{- end -}}

{{/* Liveness asks for the process alone (service ""), which answers while a model loads and while a long prompt runs.
Start and readiness ask for the service, which serves while its model is READY. */}}
{{- define "magnitude.probes" -}}
{{- $probes := .Values.probes -}}
startupProbe:
  grpc:
    port: {{ include "magnitude.probePort" . }}
    service: magnitude.v1.InferenceService
  periodSeconds: {{ $probes.periodSeconds | int64 }}
  timeoutSeconds: {{ $probes.timeoutSeconds | int64 }}
  failureThreshold: {{ include "magnitude.startupFailures" . }}
readinessProbe:
  grpc:
    port: {{ include "magnitude.probePort" . }}
    service: magnitude.v1.InferenceService
  periodSeconds: {{ $probes.periodSeconds | int64 }}
  timeoutSeconds: {{ $probes.timeoutSeconds | int64 }}
  failureThreshold: 1
livenessProbe:
  grpc:
    port: {{ include "magnitude.probePort" . }}
  periodSeconds: {{ $probes.periodSeconds | int64 }}
  timeoutSeconds: {{ $probes.timeoutSeconds | int64 }}
  failureThreshold: {{ $probes.livenessFailures | int64 }}
{{- end -}}

{{- define "magnitude.mounts" -}}
- {name: settings, mountPath: /etc/magnitude, readOnly: true}
- {name: model, mountPath: /models, readOnly: true{{ if and (eq .Values.model.from "claim") .Values.model.claim.subPath }}, subPath: {{ .Values.model.claim.subPath }}{{ end }}}
- {name: shm, mountPath: /dev/shm}
- {name: tmp, mountPath: /tmp}
{{- if .Values.state.enabled }}
- {name: state, mountPath: /var/lib/magnitude}
{{- else }}
- {name: cache, mountPath: /var/cache/magnitude}
{{- end }}
{{- if .Values.tls.secretName }}
- {name: tls, mountPath: /etc/magnitude-tls, readOnly: true}
{{- end }}
{{- if .Values.auth.secretName }}
- {name: tokens, mountPath: /etc/magnitude-tokens, readOnly: true}
{{- end }}
{{- end -}}

{{- define "magnitude.volumes" -}}
- name: settings
  configMap: {name: {{ include "magnitude.fullname" . }}}
- name: model
  {{- if eq .Values.model.from "claim" }}
  persistentVolumeClaim: {claimName: {{ .Values.model.claim.name }}, readOnly: true}
  {{- else if eq .Values.model.from "image" }}
  image:
    reference: {{ .Values.model.image.reference }}
    pullPolicy: {{ .Values.model.image.pullPolicy }}
  {{- else if .Values.model.pull.claim }}
  persistentVolumeClaim: {claimName: {{ .Values.model.pull.claim }}}
  {{- else }}
  emptyDir: {sizeLimit: {{ add (mul 3 (include "magnitude.mebibytes" .Values.model.size | int64)) 64 }}Mi}   # while it is fetched
  {{- end }}
- name: shm
  emptyDir: {medium: Memory, sizeLimit: {{ .Values.shmSize }}}
- name: tmp
  emptyDir: {sizeLimit: 64Mi}
{{- if not .Values.state.enabled }}
- name: cache
  emptyDir: {sizeLimit: 64Mi}
{{- end }}
{{- if .Values.tls.secretName }}
- name: tls
  secret: {secretName: {{ .Values.tls.secretName }}, defaultMode: 0440}
{{- end }}
{{- if .Values.auth.secretName }}
- name: tokens
  secret: {secretName: {{ .Values.auth.secretName }}, defaultMode: 0440}
{{- end }}
{{- end -}}

{{/* Fetches the model once, checks it, and goes on where it was interrupted. */}}
{{- define "magnitude.pullContainer" -}}
- name: pull
  image: {{ include "magnitude.image" . }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  args:
    - pull
    - {{ .Values.model.pull.source | quote }}
    - --sha256={{ .Values.model.pull.sha256 }}
    - --output={{ .Values.model.file }}
    - --cache-dir=/models
  env:
    - {name: TMPDIR, value: /models}   # what is under way is as large as the model
  resources:
    {{- include "magnitude.resources" . | trim | nindent 4 }}
  securityContext:
    {{- include "magnitude.containerSecurity" . | nindent 4 }}
  volumeMounts:
    - {name: model, mountPath: /models}
    - {name: tmp, mountPath: /tmp}
{{- end -}}

{{- define "magnitude.serveContainer" -}}
- name: magnitude
  image: {{ include "magnitude.image" . }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  args: [serve, --config=/etc/magnitude/magnitude.toml]
  ports:
    - {name: grpc, containerPort: {{ .Values.ports.grpc | int64 }}}
    - {name: metrics, containerPort: {{ .Values.ports.metrics | int64 }}}
    {{- if include "magnitude.guarded" . }}
    - {name: health, containerPort: {{ .Values.ports.health | int64 }}}
    {{- end }}
  resources:
    {{- include "magnitude.resources" . | trim | nindent 4 }}
  {{- include "magnitude.probes" . | nindent 2 }}
  lifecycle:
    preStop:
      exec: {command: [sleep, {{ .Values.termination.preStopSeconds | quote }}]}
  securityContext:
    {{- include "magnitude.containerSecurity" . | nindent 4 }}
  volumeMounts:
    {{- include "magnitude.mounts" . | nindent 4 }}
{{- end -}}

{{- define "magnitude.podLabels" -}}
{{ include "magnitude.selectorLabels" . }}
{{- if .Values.inferencePool.enabled }}
inference.networking.k8s.io/engine-type: magnitude
llm-d.ai/engine-type: magnitude
{{- end }}
{{- with .Values.podLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "magnitude.podTemplate" -}}
metadata:
  labels:
    {{- include "magnitude.podLabels" . | nindent 4 }}
  annotations:
    magnitude.dev/settings: {{ include "magnitude.settings" . | sha256sum }}
    {{- with .Values.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  serviceAccountName: {{ include "magnitude.serviceAccountName" . }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ include "magnitude.terminationSeconds" . }}
  {{- with .Values.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- with .Values.imagePullSecrets }}
  imagePullSecrets:
    {{- range . }}
    - name: {{ . }}
    {{- end }}
  {{- end }}
  securityContext:
    runAsNonRoot: true
    runAsUser: 10001
    runAsGroup: 10001
    fsGroup: 10001
    fsGroupChangePolicy: OnRootMismatch
    seccompProfile: {type: RuntimeDefault}
  {{- if eq .Values.model.from "pull" }}
  initContainers:
    {{- include "magnitude.pullContainer" . | nindent 4 }}
  {{- end }}
  containers:
    {{- include "magnitude.serveContainer" . | nindent 4 }}
  volumes:
    {{- include "magnitude.volumes" . | nindent 4 }}
  {{- with .Values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- if .Values.topologySpread }}
  topologySpreadConstraints:
    - maxSkew: 1
      topologyKey: kubernetes.io/hostname
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels:
          {{- include "magnitude.selectorLabels" . | nindent 10 }}
  {{- end }}
{{- end -}}

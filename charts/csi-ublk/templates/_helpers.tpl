{{/* The driver is a singleton in its cluster, so its names do not carry the release's. */}}
{{- define "csi-ublk.selector" -}}
app.kubernetes.io/name: csi-ublk
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "csi-ublk.labels" -}}
app.kubernetes.io/name: csi-ublk
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "csi-ublk.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* Flags that every role has. */}}
{{- define "csi-ublk.logArgs" -}}
- --log-level={{ .Values.log.level }}
- --log-format={{ .Values.log.format }}
{{- end }}

{{/* "true" if the release does snapshots. Without a cluster, as for helm template, only --api-versions says what is served. */}}
{{- define "csi-ublk.snapshots" -}}
{{- $enabled := toString .Values.snapshots.enabled -}}
{{- if or (eq $enabled "true") (and (eq $enabled "auto") (.Capabilities.APIVersions.Has "snapshot.storage.k8s.io/v1")) -}}
true
{{- end }}
{{- end }}

{{/* Where a pod of a component may run, from dict "at" (the component's values). */}}
{{- define "csi-ublk.placement" -}}
nodeSelector:
  kubernetes.io/os: linux
  {{- with .at.nodeSelector }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with .at.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .at.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Probes on the HTTP port, alike for all roles. */}}
{{- define "csi-ublk.probes" -}}
startupProbe:
  httpGet: {path: /healthz, port: http}
  periodSeconds: 2
  failureThreshold: 60
livenessProbe:
  httpGet: {path: /healthz, port: http}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /readyz, port: http}
  periodSeconds: 5
  timeoutSeconds: 5
{{- end }}

{{/* The extraArgs of a role of the driver, from dict "of" (the value's name) and "args". Flags on which the rest of
the chart depends are set by values, where they have one. */}}
{{- define "csi-ublk.extraArgs" -}}
{{- $ours := dict
  "http-address" "the probes ask at the port that the chart knows"
  "endpoint" "the sidecars and the kubelet call the socket that the chart knows"
  "socket" "node and server meet at the socket that the chart knows"
  "server-socket" "node and server meet at the socket that the chart knows"
  "state-dir" "use the value stateDir"
  "kubelet-dir" "use the value kubeletDir"
  "config" "use the value pools"
  "templates" "use the value node.templates"
  "mark-nodes" "use the value controller.markNodes"
  "taint-wedged-nodes" "use the value controller.taintWedgedNodes"
  "snapshot-metadata" "use the value snapshotMetadata.enabled"
  "snapshot-metadata-address" "use the value snapshotMetadata.enabled"
  "log-level" "use the value log.level"
  "log-format" "use the value log.format" }}
{{- range .args }}
{{- $flag := trimPrefix "--" (first (splitList "=" .)) }}
{{- with get $ours $flag }}
{{- fail (printf "%s: --%s can't be given here: %s" $.of $flag .) }}
{{- end }}
{{- end }}
{{- with .args }}
{{- toYaml . }}
{{- end }}
{{- end }}

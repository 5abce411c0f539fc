{{- define "specpilot.labels" -}}
app.kubernetes.io/name: specpilot
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "specpilot.selector" -}}
app.kubernetes.io/name: specpilot
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "specpilot.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "specpilot.engineImage" -}}
{{ .Values.engineImage.repository }}:{{ .Values.engineImage.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "specpilot.gatewayScheme" -}}
{{- if .Values.gateway.tlsSecret }}HTTPS{{ else }}HTTP{{ end }}
{{- end }}

{{- define "specpilot.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "specpilot.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: ["ALL"]
{{- end }}

{{- define "specpilot.redisEnv" -}}
{{- if .Values.redis.enabled }}
- name: REDIS_PASSWORD
  valueFrom:
    secretKeyRef:
      name: {{ .Values.redis.passwordSecret }}
      key: {{ .Values.redis.passwordKey }}
- name: REDIS_URL
  {{- if .Values.redis.tlsSecret }}
  value: "rediss://:$(REDIS_PASSWORD)@{{ .Release.Name }}-redis:6379/0?ssl_ca_certs=/etc/redis-ca/ca.crt"
  {{- else }}
  value: "redis://:$(REDIS_PASSWORD)@{{ .Release.Name }}-redis:6379/0"
  {{- end }}
{{- else }}
- name: REDIS_URL
  valueFrom:
    secretKeyRef:
      name: {{ .Values.redis.urlSecret }}
      key: {{ .Values.redis.urlKey }}
{{- end }}
{{- end }}

{{- define "specpilot.redisCa" -}}
{{- if .Values.redis.enabled }}{{ .Values.redis.tlsSecret }}{{ else }}{{ .Values.redis.caSecret }}{{ end }}
{{- end }}

{{- define "specpilot.volumeMounts" -}}
- name: tmp
  mountPath: /tmp
{{- if include "specpilot.redisCa" . }}
- name: redis-ca
  mountPath: /etc/redis-ca
  readOnly: true
{{- end }}
{{- end }}

{{- define "specpilot.volumes" -}}
- name: tmp
  emptyDir: {}
{{- if include "specpilot.redisCa" . }}
- name: redis-ca
  secret:
    secretName: {{ include "specpilot.redisCa" . }}
    {{- if .Values.redis.enabled }}
    items:
      - key: ca.crt
        path: ca.crt
    {{- end }}
{{- end }}
{{- end }}

{{- define "dovecote.fullname" -}}
{{- if contains "dovecote" .Release.Name -}}{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else -}}{{ printf "%s-dovecote" .Release.Name | trunc 40 | trimSuffix "-" }}{{- end -}}
{{- end }}

{{- define "dovecote.selector" -}}
app.kubernetes.io/name: dovecote
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "dovecote.labels" -}}
{{ include "dovecote.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "dovecote.serviceAccount" -}}
{{- default (ternary (include "dovecote.fullname" .) "default" .Values.serviceAccount.create) .Values.serviceAccount.name }}
{{- end }}

{{- define "dovecote.secret" -}}
{{- default (include "dovecote.fullname" .) .Values.existingSecret }}
{{- end }}

{{- define "dovecote.image" -}}
{{- if .Values.image.digest -}}{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}{{- end -}}
{{- end }}

{{- define "dovecote.publicUrl" -}}
{{- if .Values.publicUrl -}}{{ .Values.publicUrl }}
{{- else if .Values.ingress.enabled -}}https://{{ .Values.ingress.host }}{{- end -}}
{{- end }}

{{- /* The number of gateways on the database: the setting `replicas`. */ -}}
{{- define "dovecote.replicas" -}}
{{- $all := 0 -}}
{{- range .Values.gateways }}{{ if . }}{{ $all = add $all .replicas }}{{ end }}{{ end -}}
{{ $all }}
{{- end }}

{{- define "dovecote.roles" -}}
{{- if kindIs "string" .roles }}{{ .roles }}{{ else }}{{ join "," .roles }}{{ end -}}
{{- end }}

{{- /* What a schema cannot say: each role is somewhere, and several gateways have something to share. */ -}}
{{- define "dovecote.check" -}}
{{- $roles := list -}}
{{- range .Values.gateways }}{{ if . }}{{ $roles = concat $roles (splitList "," (include "dovecote.roles" .)) }}{{ end }}{{ end -}}
{{- range list "ingress" "turns" "delivery" "reaper" }}
{{- if not (or (has "all" $roles) (has . $roles)) }}
{{- fail (printf "gateways: no group has the role %s: add it to a group's roles" .) }}
{{- end }}
{{- end }}
{{- if and (gt (int (include "dovecote.replicas" .)) 1) (not .Values.existingSecret) }}
{{- range list "DOVECOTE_DATABASE_URL" "DOVECOTE_NATS_URL" "DOVECOTE_SECRET_KEYS" }}
{{- if not (get $.Values.secret .) }}
{{- fail (printf "secret.%s is missing: several gateways share a database, NATS and keys; set it, name existingSecret, or run one replica" .) }}
{{- end }}
{{- end }}
{{- end }}
{{- if and (gt (int (include "dovecote.replicas" .)) 1) (ne .Values.persistence.mode "shared") (ne .Values.workspaces.store "s3") }}
{{- fail "workspaces.store: directory works for one gateway only: set workspaces.store to s3, persistence.mode to shared, or run one replica" }}
{{- end }}
{{- if and (eq .Values.workspaces.store "s3") (not .Values.workspaces.bucket) }}
{{- fail "workspaces.bucket is missing: set it to the name of a bucket" }}
{{- end }}
{{- if and .Values.ingress.enabled (not .Values.ingress.host) }}
{{- fail "ingress.host is missing: set it to the name at which platforms reach the gateway" }}
{{- end }}
{{- end }}

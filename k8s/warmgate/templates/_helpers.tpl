{{- define "warmgate.name" -}}
{{- if or .Values.nameOverride (contains "warmgate" .Release.Name) -}}
{{- .Values.nameOverride | default .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-warmgate" .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "warmgate.selector" -}}
app.kubernetes.io/name: warmgate
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: router
{{- end -}}

{{- define "warmgate.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: warmgate
{{- end -}}

{{- define "warmgate.image" -}}
{{ printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) }}
{{- end -}}

{{- define "warmgate.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "warmgate.name" .) -}}
{{- else -}}
{{- .Values.serviceAccount.name | default "default" -}}
{{- end -}}
{{- end -}}

{{- define "warmgate.hasEngines" -}}
{{- if or .Values.engines.embedded.enabled .Values.engines.vllm -}}true{{- end -}}
{{- end -}}

{{- define "warmgate.engineSelector" -}}
app.kubernetes.io/name: warmgate-engine
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: engine
{{- end -}}

{{- define "warmgate.discoveryNamespace" -}}
{{- if include "warmgate.hasEngines" . -}}{{ .Release.Namespace }}
{{- else -}}{{ .Values.discovery.namespace | default .Release.Namespace }}{{- end -}}
{{- end -}}

{{- /* Whether more than one router can run. */ -}}
{{- define "warmgate.isMany" -}}
{{- if or (and .Values.autoscaling.enabled (gt (int .Values.autoscaling.maxReplicas) 1)) (and (not .Values.autoscaling.enabled) (gt (int .Values.replicas) 1)) -}}true{{- end -}}
{{- end -}}

{{- /* The Secret with the key file; empty: no keys. */ -}}
{{- define "warmgate.keysSecret" -}}
{{- if .Values.tenants.existingSecret -}}{{ .Values.tenants.existingSecret }}
{{- else if .Values.tenants.list -}}{{ include "warmgate.name" . }}-keys{{- end -}}
{{- end -}}

{{- /* The router's settings: what the values say, under what `config` says. */ -}}
{{- define "warmgate.config" -}}
{{- $d := .Values.discovery -}}
{{- $discovery := dict "source" $d.source -}}
{{- if ne $d.source "static" -}}
{{- $_ := set $discovery "port" $d.port -}}
{{- with $d.eventsPort }}{{ $_ := set $discovery "events_port" . }}{{ end -}}
{{- with $d.replayPort }}{{ $_ := set $discovery "replay_port" . }}{{ end -}}
{{- with $d.topic }}{{ $_ := set $discovery "topic" . }}{{ end -}}
{{- end -}}
{{- if eq $d.source "kubernetes" -}}
{{- $_ := set $discovery "namespace" (include "warmgate.discoveryNamespace" .) -}}
{{- if include "warmgate.hasEngines" . -}}
{{- $_ := set $discovery "selector" (printf "app.kubernetes.io/name=warmgate-engine,app.kubernetes.io/instance=%s" .Release.Name) -}}
{{- else if $d.service -}}{{- $_ := set $discovery "service" $d.service -}}
{{- else if $d.inferencePool -}}{{- $_ := set $discovery "inference_pool" $d.inferencePool -}}
{{- else -}}{{- $_ := set $discovery "selector" (required "discovery: give selector, service, inferencePool, or engines" $d.selector) -}}
{{- end -}}
{{- else if eq $d.source "dns" -}}
{{- $name := printf "%s-engines" (include "warmgate.name" .) -}}
{{- if not (include "warmgate.hasEngines" .) -}}
{{- $name = required "discovery.service: the headless Service is missing" $d.service -}}
{{- end -}}
{{- $_ := set $discovery "name" (printf "%s.%s.svc" $name (include "warmgate.discoveryNamespace" .)) -}}
{{- end -}}
{{- $listen := dict "host" "0.0.0.0" "port" 8080 "admin_port" 9090 "settle_s" .Values.settleSeconds "drain_s" .Values.drainSeconds -}}
{{- $index := dict -}}
{{- if include "warmgate.isMany" . -}}
{{- $_ := set $index "siblings" (list (printf "http://%s:9090" (include "warmgate.adminService" .))) -}}
{{- end -}}
{{- $health := dict "interval_s" 1 "timeout_s" 1 -}}
{{- $shared := dict -}}
{{- if .Values.redis.url -}}
{{- $_ := set $shared "url" .Values.redis.url -}}
{{- else if .Values.redis.bundled.enabled -}}
{{- $_ := set $shared "url" (printf "redis://%s-redis:6379/0" (include "warmgate.name" .)) -}}
{{- end -}}
{{- $_ := set $shared "prefix" (include "warmgate.name" .) -}}
{{- $tenants := dict -}}
{{- if include "warmgate.keysSecret" . -}}{{- $_ := set $tenants "keys_file" "/etc/warmgate-keys/keys.yaml" -}}{{- end -}}
{{- $base := dict "tenants" $tenants "shared" $shared "listen" $listen "discovery" $discovery "index" $index "health" $health "log" (dict "access" true "format" "json") -}}
{{- mustMergeOverwrite $base (deepCopy .Values.config) | toYaml -}}
{{- end -}}

{{- /* Restricted pod security, for every container of the chart. */ -}}
{{- define "warmgate.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities: {drop: [ALL]}
{{- end -}}

{{- define "warmgate.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "warmgate.adminService" -}}
{{ include "warmgate.name" . }}{{ if ne .Values.service.type "ClusterIP" }}-admin{{ end }}
{{- end -}}

{{- define "warmgate.engineAnnotations" -}}
warmgate/port: {{ .Values.discovery.port | quote }}
warmgate/events-port: {{ .Values.discovery.eventsPort | default 5557 | quote }}
warmgate/replay-port: {{ .Values.discovery.replayPort | default 5657 | quote }}
{{- end -}}

{{- define "warmgate.enginePorts" -}}
ports:
  - {name: http, containerPort: {{ .Values.discovery.port }}, protocol: TCP}
  - {name: events, containerPort: {{ .Values.discovery.eventsPort | default 5557 }}, protocol: TCP}
  - {name: replay, containerPort: {{ .Values.discovery.replayPort | default 5657 }}, protocol: TCP}
{{- end -}}

{{- define "warmgate.kvEvents" -}}
{{- $events := printf "tcp://*:%d" (int (.Values.discovery.eventsPort | default 5557)) -}}
{{- $replay := printf "tcp://*:%d" (int (.Values.discovery.replayPort | default 5657)) -}}
{{- dict "enable_kv_cache_events" true "publisher" "zmq" "endpoint" $events "replay_endpoint" $replay "topic" .Values.discovery.topic | toJson -}}
{{- end -}}

{{- /* P95 of the TTFT that routers predict, in s; `model`: of one. */ -}}
{{- define "warmgate.predictedTtft" -}}
{{- $labels := printf `service="%s",namespace="%s"` (include "warmgate.adminService" .) .Release.Namespace -}}
{{- with .model -}}{{- $labels = printf `%s,model="%s"` $labels . -}}{{- end -}}
{{- printf `histogram_quantile(0.95, sum by (le) (rate(warmgate_predicted_ttft_seconds_bucket{%s}[2m])))` $labels -}}
{{- end -}}

{{- define "warmgate.redisSelector" -}}
app.kubernetes.io/name: warmgate-redis
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: redis
{{- end -}}

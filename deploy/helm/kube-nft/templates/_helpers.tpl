{{- define "kube-nft.name" -}}
{{ .Values.nameOverride | default "kube-nft" }}
{{- end }}

{{- define "kube-nft.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "kube-nft.pull" -}}
{{- with .Values.image.pullPolicy }}
imagePullPolicy: {{ . }}
{{- end }}
{{- end }}

{{- /* The port of metrics, for the PodMonitor. */ -}}
{{- define "kube-nft.metricsPort" -}}
{{ regexFind "[0-9]+$" .Values.metricsBindAddress }}
{{- end }}

{{- define "kube-nft.healthPort" -}}
{{ if eq .Values.mode "canary" }}10356{{ else }}10256{{ end }}
{{- end }}

{{- define "kube-nft.name" -}}
{{ .Values.fullnameOverride | default .Values.nameOverride | default "kube-nft" }}
{{- end }}

{{- /* --set makes a number of a tag such as 20261123. In a file, 1.10 would be 1.1 and 20261123 2.0261123e+07. */ -}}
{{- define "kube-nft.tag" -}}
{{- if kindIs "float64" .Values.image.tag }}
{{- fail (printf "image.tag is a number, which a file of values does not keep as it is written: quote it, or give --set-string image.tag=TAG (have %v)" .Values.image.tag) }}
{{- end }}
{{- .Values.image.tag | toString | default .Chart.AppVersion }}
{{- end }}

{{- define "kube-nft.image" -}}
{{ .Values.image.repository }}:{{ include "kube-nft.tag" . }}
{{- end }}

{{- define "kube-nft.pull" -}}
{{- with .Values.image.pullPolicy }}
imagePullPolicy: {{ . }}
{{- end }}
{{- end }}

{{- /* The port of metrics, for the PodMonitor. */ -}}
{{- define "kube-nft.metricsPort" -}}
{{- $port := regexFind "[0-9]+$" .Values.metricsBindAddress }}
{{- if and (eq .Values.mode "shadow") (eq $port "10249") }}10349{{ else }}{{ $port }}{{ end }}
{{- end }}

{{- define "kube-nft.healthPort" -}}
{{ if has .Values.mode (list "canary" "shadow") }}10356{{ else }}10256{{ end }}
{{- end }}

{{/* Parts of several manifests. Names are fixed: a cluster has one installation. */}}

{{- define "cwasi.pullSecrets" -}}
{{- with .Values.imagePullSecrets -}}
imagePullSecrets:
{{ toYaml . | indent 2 }}
{{- end -}}
{{- end }}

{{/* Of a pod that belongs on nodes with the runtime: (list . LABEL COMPONENT) */}}
{{- define "cwasi.runtimeNodes" -}}
nodeSelector:
  cwasi/runtime: {{ index . 1 | quote }}
{{- with (index . 2).nodeSelector }}
{{ toYaml . | indent 2 }}
{{- end }}
{{- with (index . 2).tolerations }}
tolerations:
{{ toYaml . | indent 2 }}
{{- end }}
{{- end }}

{{- define "cwasi.resources" -}}
{{- with .resources -}}
resources:
{{ toYaml . | indent 2 }}
{{- end -}}
{{- end }}

{{/* The nodes' configuration, if the installer brings it. */}}
{{- define "cwasi.nodeConfig" -}}
{{- if .Values.node.enabled }}{{ .Values.node.config | default "" }}{{ end }}
{{- end }}

{{/* An annotation that changes with the nodes' configuration, so that pods which read it once are replaced. */}}
{{- define "cwasi.nodeConfigDigest" -}}
cwasi.dev/node-config: {{ include "cwasi.nodeConfig" . | sha256sum | trunc 16 | quote }}
{{- end }}

{{/* A path in the nodes' configuration: (list . KEY DEFAULT) */}}
{{- define "cwasi.path" -}}
{{- $line := regexFind (printf `(?m)^[ \t]*%s[ \t]*=[ \t]*["'][^"']+["']` (index . 1)) (include "cwasi.nodeConfig" (index . 0)) }}
{{- regexReplaceAll `^[^"']*["']|["']$` $line "" | default (index . 2) }}
{{- end }}

{{/* The DaemonSet that installs, or the one that takes off: (list . VERB LABEL) */}}
{{- define "cwasi.installer" -}}
{{- $top := index . 0 }}
{{- $verb := index . 1 }}
{{- $values := $top.Values }}
apiVersion: apps/v1
kind: DaemonSet
metadata:
  name: cwasi-{{ $verb }}
  namespace: {{ $top.Release.Namespace }}
  labels: {app: cwasi-{{ $verb }}}
spec:
  selector: {matchLabels: {app: cwasi-{{ $verb }}}}
  updateStrategy: {rollingUpdate: {maxUnavailable: 1}}
  template:
    metadata:
      labels: {app: cwasi-{{ $verb }}}
      {{- if and (eq $verb "install") $values.node.config }}
      # It reads the configuration once: another one is another pod.
      annotations: { {{- include "cwasi.nodeConfigDigest" $top -}} }
      {{- end }}
    spec:
      {{- include "cwasi.runtimeNodes" (list $top (index . 2) $values.node) | nindent 6 }}
      {{- with include "cwasi.pullSecrets" $top }}{{ nindent 6 . }}{{ end }}
      priorityClassName: system-node-critical
      automountServiceAccountToken: false
      # To restart containerd in the namespaces of the node's first process.
      hostPID: true
      terminationGracePeriodSeconds: 5
      containers:
        - name: node
          image: {{ printf "%s:%s" $values.image.repository $values.image.tag | quote }}
          imagePullPolicy: {{ $values.image.pullPolicy }}
          command: [/bin/sh, /cwasi/node.sh, {{ $verb }}]
          env:
            - name: PREFIX
              value: {{ $values.node.prefix | quote }}
            # Empty: the installer finds which containerd the node has.
            - name: CONTAINERD_CONFIG
              value: {{ $values.node.containerdConfig | quote }}
            - name: CONTAINERD_RESTART
              value: {{ $values.node.containerdRestart | quote }}
          securityContext: {privileged: true}
          {{- with include "cwasi.resources" $values.node }}{{ nindent 10 . }}{{ end }}
          readinessProbe:
            exec: {command: [/bin/test, -e, /tmp/done]}
            periodSeconds: 2
          volumeMounts:
            # What the node unmounts is unmounted here, too: no volume stays in use.
            - {name: host, mountPath: /host, mountPropagation: HostToContainer}
            {{- if eq $verb "install" }}
            - {name: config, mountPath: /config, readOnly: true}
            {{- end }}
      volumes:
        - name: host
          hostPath: {path: /}
        {{- if eq $verb "install" }}
        - name: config
          # The nodes' configuration. Without one a node's own file is left alone.
          secret: {secretName: cwasi-node, optional: true}
        {{- end }}
{{- end }}

{{/* The operator's rights on Workflows and on what it makes of them. */}}
{{- define "cwasi.operatorRules" -}}
- apiGroups: [cwasi.dev]
  resources: [workflows]
  verbs: [get, list, watch]
- apiGroups: [cwasi.dev]
  resources: [workflows/status]
  verbs: [patch]
# blockOwnerDeletion of what it makes
- apiGroups: [cwasi.dev]
  resources: [workflows/finalizers]
  verbs: [update]
- apiGroups: [apps]
  resources: [deployments, statefulsets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [batch]
  resources: [jobs, cronjobs]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [services]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [networking.k8s.io]
  resources: [ingresses]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [autoscaling]
  resources: [horizontalpodautoscalers]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch, delete]
# of functions with scale.min: 0
- apiGroups: [keda.sh]
  resources: [scaledobjects]
  verbs: [get, list, watch, create, patch, delete]
# of functions with ingress.gateway
- apiGroups: [gateway.networking.k8s.io]
  resources: [httproutes]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create, patch]
{{- end }}

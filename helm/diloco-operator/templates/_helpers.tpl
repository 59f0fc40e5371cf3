{{- define "diloco-operator.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end }}

{{/* At most 45 characters, since suffixes add up to 18. */}}
{{- define "diloco-operator.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 45 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 45 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 45 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end }}

{{- define "diloco-operator.selectorLabels" -}}
app.kubernetes.io/name: {{ include "diloco-operator.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end }}

{{- define "diloco-operator.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{ include "diloco-operator.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: diloco-operator
{{- end }}

{{- define "diloco-operator.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "diloco-operator.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end }}

{{/* image: {repository, tag, digest}; version: the default tag */}}
{{- define "diloco-operator.image" -}}
{{- if .image.digest -}}
{{ .image.repository }}@{{ .image.digest }}
{{- else -}}
{{ .image.repository }}:{{ default .version .image.tag }}
{{- end -}}
{{- end }}

{{/* The file that `diloco-operator run --config` reads. */}}
{{- define "diloco-operator.configuration" -}}
{{- $syncer := include "diloco-operator.image" (dict "image" .Values.images.syncer "version" .Chart.AppVersion) -}}
{{- $head := dict "apiVersion" "config.diloco.dev/v1alpha1" "kind" "OperatorConfiguration" -}}
{{- $own := dict "syncerImage" $syncer -}}
{{- with .Values.storageClassName }}{{ $_ := set $own "storageClassName" . }}{{ end -}}
{{- with .Values.images.pullSecrets }}{{ $_ := set $own "imagePullSecrets" . }}{{ end -}}
{{- $clusters := list -}}
{{- range .Values.clusters -}}
{{- $clusters = append $clusters (dict "name" .name "kubeconfig" (printf "/etc/diloco-operator-clusters/%s/kubeconfig" .name) "namespaces" .namespaces) -}}
{{- end -}}
{{- with $clusters }}{{ $_ := set $own "clusters" . }}{{ end -}}
{{- mergeOverwrite $head $own .Values.config | toYaml -}}
{{- end }}

{{/* The file that `diloco-operator run --catalogue` reads; "" if there is nothing in it. */}}
{{- define "diloco-operator.catalogue" -}}
{{- if or .Values.catalogue .Values.incidentalResources -}}
{{- dict "apiVersion" "config.diloco.dev/v1alpha1" "kind" "AcceleratorCatalogue" "accelerators" .Values.catalogue "incidentalResources" .Values.incidentalResources | toYaml -}}
{{- end -}}
{{- end }}

{{/* "yes" if metrics need a bearer token, else "". */}}
{{- define "diloco-operator.metricsAuth" -}}
{{- if and .Values.metrics.enabled .Values.metrics.auth.enabled }}yes{{ end -}}
{{- end }}

{{/* Rights on namespaced objects, the same in a ClusterRole and in the Role of a watched namespace. */}}
{{- define "diloco-operator.namespacedRules" -}}
- apiGroups: [diloco.dev]
  resources: [dilocojobs]
  verbs: [list, watch, patch, delete]   # patch: the finalizer of a job with parts; delete: ttlSecondsAfterFinished
- apiGroups: [diloco.dev]
  resources: [dilocojobs/status]
  verbs: [update]
- apiGroups: [diloco.dev]
  resources: [dilocojobs/finalizers]
  verbs: [update]   # blockOwnerDeletion of pods, where OwnerReferencesPermissionEnforcement is on
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [pods/status]
  verbs: [patch]   # pods on lost nodes, for which Kueue waits
- apiGroups: [""]
  resources: [configmaps]
  verbs: [get, list, watch, create, delete]
- apiGroups: [""]
  resources: [secrets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [services]
  verbs: [get, list, watch, create, delete]
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [get, list, watch, create, patch]
- apiGroups: [""]
  resources: [events]
  verbs: [list, create, patch]
- apiGroups: [resource.k8s.io]
  resources: [resourceclaimtemplates]
  verbs: [get, create]   # of units on hosts whose GPUs only DRA offers
- apiGroups: [kueue.x-k8s.io]
  resources: [workloads]
  verbs: [list, watch]
{{- end }}

{{/* Namespaces that the operator watches, as a JSON list; empty: all. */}}
{{- define "diloco-operator.watchedNamespaces" -}}
{{- if .Values.watchAnyNamespace -}}
[]
{{- else -}}
{{- .Values.watchNamespaces | default (list .Release.Namespace) | toJson -}}
{{- end -}}
{{- end }}

{{/* Namespaces in which syncers and learners get network policies, as a JSON list. */}}
{{- define "diloco-operator.jobNamespaces" -}}
{{- .Values.networkPolicy.jobNamespaces | default (include "diloco-operator.watchedNamespaces" . | fromJsonArray) | toJson -}}
{{- end }}

{{/* Egress rule for DNS. */}}
{{- define "diloco-operator.dnsRule" -}}
- ports:
  - {protocol: UDP, port: 53}
  - {protocol: TCP, port: 53}
  {{- with .Values.networkPolicy.dns }}
  to:
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{- define "diloco-operator.leaseName" -}}
{{- .Values.leaderElection.leaseName | default (include "diloco-operator.fullname" .) -}}
{{- end }}

{{/* Name of the Lease in 0.1.0, where no value set it; "" where it has not changed. See docs/decisions/0090-lease-and-clocks.md. */}}
{{- define "diloco-operator.formerLeaseName" -}}
{{- if not (or .Values.leaderElection.leaseName (eq (include "diloco-operator.fullname" .) "diloco-operator")) -}}
diloco-operator
{{- end -}}
{{- end }}

{{/* Whether the release had rights in all namespaces until now; "" outside a cluster, where nothing can be looked up. */}}
{{- define "diloco-operator.watchedAny" -}}
{{- range (lookup "rbac.authorization.k8s.io/v1" "ClusterRole" "" (include "diloco-operator.fullname" .)).rules -}}
{{- if has "dilocojobs" (.resources | default list) }}yes{{ end -}}
{{- end -}}
{{- end }}

{{/* Whether an upgrade without the CRD would delete it: Helm deletes what is no longer in the release and has no annotation, in the cluster,
that keeps it. Not without rbac.create, as then the user may lack the right to read CRDs. */}}
{{- define "diloco-operator.deletesCRD" -}}
{{- if and .Release.IsUpgrade .Values.rbac.create (not .Values.crds.enabled) -}}
{{- with (lookup "apiextensions.k8s.io/v1" "CustomResourceDefinition" "" "dilocojobs.diloco.dev").metadata -}}
{{- $annotations := .annotations | default dict -}}
{{- if and (eq (get $annotations "meta.helm.sh/release-name") $.Release.Name) (eq (get $annotations "meta.helm.sh/release-namespace") $.Release.Namespace) (ne (get $annotations "helm.sh/resource-policy") "keep") }}yes{{ end -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* Seconds of a duration such as 1h30m, in the form that values.schema.json accepts. */}}
{{- define "diloco-operator.seconds" -}}
{{- $seconds := 0.0 -}}
{{- range regexFindAll "[0-9.]+(ms|s|m|h)" . -1 -}}
{{- $unit := regexFind "[a-z]+" . -}}
{{- $seconds = addf $seconds (mulf (trimSuffix $unit . | float64) (get (dict "ms" 0.001 "s" 1.0 "m" 60.0 "h" 3600.0) $unit)) -}}
{{- end -}}
{{- $seconds -}}
{{- end }}

{{/* Rejects durations that the operator would refuse at its start. */}}
{{- define "diloco-operator.validateDurations" -}}
{{- with .Values.leaderElection -}}
{{- if .enabled -}}
{{- $lease := include "diloco-operator.seconds" .leaseDuration | float64 -}}
{{- $renew := include "diloco-operator.seconds" .renewDeadline | float64 -}}
{{- $retry := include "diloco-operator.seconds" .retryPeriod | float64 -}}
{{- if not (and (gt $lease $renew) (gt $renew $retry) (gt $retry 0.0)) -}}
{{- fail (printf "leaderElection: retryPeriod (%s) must be above 0, renewDeadline (%s) longer than retryPeriod, and leaseDuration (%s) longer than renewDeadline" .retryPeriod .renewDeadline .leaseDuration) -}}
{{- end -}}
{{- if ne $lease (floor $lease) -}}
{{- fail (printf "leaderElection: leaseDuration must be whole seconds, as the Lease object has it, not %s" .leaseDuration) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $lifetimeText := .Values.config.certificateLifetime | default "720h" -}}
{{- $propagationText := .Values.config.secretPropagation | default "3m" -}}
{{- $lifetime := include "diloco-operator.seconds" $lifetimeText | float64 -}}
{{- $propagation := include "diloco-operator.seconds" $propagationText | float64 -}}
{{- if or (lt $lifetime (mulf 3.0 $propagation)) (gt $lifetime 31536000.0) (eq $lifetime 0.0) -}}
{{- fail (printf "config: certificateLifetime (%s) must be at least three times secretPropagation (%s), and at most 8760h" $lifetimeText $propagationText) -}}
{{- end -}}
{{- with .Values.metrics.serviceMonitor -}}
{{- if and .enabled (gt (include "diloco-operator.seconds" .scrapeTimeout | float64) (include "diloco-operator.seconds" .interval | float64)) -}}
{{- fail (printf "metrics.serviceMonitor: scrapeTimeout (%s) must be at most interval (%s)" .scrapeTimeout .interval) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* Rejects values that contradict each other, which a schema cannot express. */}}
{{- define "diloco-operator.validate" -}}
{{- if and .Values.watchAnyNamespace .Values.watchNamespaces -}}
{{- fail "watchAnyNamespace and watchNamespaces exclude each other; leave watchNamespaces empty, or set watchAnyNamespace to false" -}}
{{- end -}}
{{- if and .Release.IsUpgrade .Values.rbac.create (not .Values.watchAnyNamespace) (not .Values.watchNamespaces) (include "diloco-operator.watchedAny" .) -}}
{{- fail (printf "this release watched all namespaces until now, and an empty watchNamespaces means %s alone: jobs elsewhere would be left to themselves. Set watchNamespaces to the namespaces of your jobs (kubectl get dlj --all-namespaces), or watchAnyNamespace=true to keep the right to read every Secret of the cluster" .Release.Namespace) -}}
{{- end -}}
{{- if and .Values.rbac.create (not .Values.serviceAccount.create) (not .Values.serviceAccount.name) -}}
{{- fail "serviceAccount.name is needed with serviceAccount.create=false: else the operator's rights would go to the ServiceAccount default, as which any pod of the namespace runs" -}}
{{- end -}}
{{- if include "diloco-operator.deletesCRD" . -}}
{{- fail "crds.enabled=false would delete the DiLoCoJob resource and with it every job of the cluster, because this release was last upgraded with crds.keep=false. Upgrade it with crds.enabled=true and crds.keep=true first, and then with crds.enabled=false" -}}
{{- end -}}
{{- if and (gt (int .Values.replicas) 1) (not .Values.leaderElection.enabled) -}}
{{- fail "replicas: more than one needs leaderElection.enabled: two operators would both write for every job" -}}
{{- end -}}
{{- if and .Values.podDisruptionBudget.enabled (not (kindIs "invalid" .Values.podDisruptionBudget.minAvailable)) (not (kindIs "invalid" .Values.podDisruptionBudget.maxUnavailable)) -}}
{{- fail "podDisruptionBudget: minAvailable and maxUnavailable exclude each other; set the other one to null" -}}
{{- end -}}
{{- include "diloco-operator.validateDurations" . -}}
{{- if and .Values.metrics.prometheusRule.enabled (not .Values.metrics.enabled) -}}
{{- fail "metrics.prometheusRule.enabled needs metrics.enabled: its alerts read the operator's metrics" -}}
{{- end -}}
{{- if and .Values.metrics.serviceMonitor.enabled (not (and .Values.metrics.enabled .Values.metrics.service.enabled)) -}}
{{- fail "metrics.serviceMonitor.enabled needs metrics.enabled and metrics.service.enabled: it scrapes the Service" -}}
{{- end -}}
{{- end }}

{{/* Labels of an alert. (list . "warning") */}}
{{- define "diloco-operator.alertLabels" -}}
{{- $root := index . 0 -}}
{{- merge (dict "severity" (index . 1)) $root.Values.metrics.prometheusRule.alertLabels | toYaml -}}
{{- end }}

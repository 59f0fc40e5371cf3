{{- /* What Prometheus evaluates: alerts and recording rules, as a PrometheusRule's spec and a rule file have them.
See docs/decisions/0274-dashboard.md. */}}
{{- define "diloco-operator.rules" -}}
groups:
  - name: {{ include "diloco-operator.fullname" . }}
    rules:
      - alert: DiLoCoJobDegraded
        expr: diloco_job_state{state="Degraded"} == 1
        for: 15m
        labels:
          {{- include "diloco-operator.alertLabels" (list . "warning") | nindent 10 }}
        annotations:
          summary: DiLoCoJob {{ "{{ $labels.namespace }}/{{ $labels.dilocojob }}" }} has been degraded for 15 minutes.
          description: {{ "kubectl diloco status {{ $labels.dilocojob }} -n {{ $labels.namespace }}" }} names the units and the cause.
      - alert: DiLoCoJobFailed
        expr: diloco_job_condition{condition="Failed", status="True"} == 1
        labels:
          {{- include "diloco-operator.alertLabels" (list . "warning") | nindent 10 }}
        annotations:
          summary: DiLoCoJob {{ "{{ $labels.namespace }}/{{ $labels.dilocojob }}" }} has failed.
          description: {{ "kubectl diloco status {{ $labels.dilocojob }} -n {{ $labels.namespace }}" }} says why, and how to retry it.
      - alert: DiLoCoJobWithoutSnapshot
        expr: >-
          diloco_job_outer_step - (diloco_job_snapshot_step or 0 * diloco_job_outer_step) > 2 * diloco_job_snapshot_interval_steps
        for: 5m
        labels:
          {{- include "diloco-operator.alertLabels" (list . "warning") | nindent 10 }}
        annotations:
          summary: DiLoCoJob {{ "{{ $labels.namespace }}/{{ $labels.dilocojob }}" }} has written no snapshot for more than two intervals.
          description: What was trained since the last snapshot is lost if its syncer restarts. See its condition Degraded and the syncer's log.
      - alert: DiLoCoSyncerDown
        {{- /* A job that was resumed and waits for hardware has no syncer yet. */}}
        expr: diloco_job_report_age_seconds > 60 unless on (namespace, dilocojob) diloco_job_state{state=~"Queued|Suspended|Complete|Failed"} == 1
        for: 4m
        labels:
          {{- include "diloco-operator.alertLabels" (list . "critical") | nindent 10 }}
        annotations:
          summary: The operator has heard nothing from the syncer of DiLoCoJob {{ "{{ $labels.namespace }}/{{ $labels.dilocojob }}" }} for 5 minutes.
          description: No outer step is made, and after an hour learners give their hardware back. Its condition Training says what it waits for.
      - alert: DiLoCoOperatorWithoutLeader
        {{- if .Values.leaderElection.enabled }}
        expr: absent(leader_election_master_status{namespace="{{ .Release.Namespace }}", name="{{ include "diloco-operator.leaseName" . }}"} == 1)
        {{- else }}
        expr: absent(controller_runtime_max_concurrent_reconciles{namespace="{{ .Release.Namespace }}", controller="dilocojob"})
        {{- end }}
        for: 2m
        labels:
          {{- include "diloco-operator.alertLabels" (list . "critical") | nindent 10 }}
        annotations:
          summary: No replica of {{ include "diloco-operator.fullname" . }} in namespace {{ .Release.Namespace }} leads.
          description: Jobs that train go on, but pods that fail are not brought back. See the operator's pods and their logs.
  - name: {{ include "diloco-operator.fullname" . }}-goodput
    rules:
      - record: namespace_dilocojob_use:diloco_job_unit_seconds:delta1h
        expr: clamp_min(sum by (namespace, dilocojob, use) (delta(diloco_job_unit_seconds[1h])), 0)
      - record: namespace_dilocojob:diloco_job_goodput:ratio1h
        expr: >-
          sum by (namespace, dilocojob) (namespace_dilocojob_use:diloco_job_unit_seconds:delta1h{use="training"})
          / (sum by (namespace, dilocojob) (namespace_dilocojob_use:diloco_job_unit_seconds:delta1h) > 0)
      - record: namespace_dilocojob:diloco_job_goodput:ratio
        expr: >-
          sum by (namespace, dilocojob) (diloco_job_unit_seconds{use="training"})
          / (sum by (namespace, dilocojob) (diloco_job_unit_seconds) > 0)
      - record: use:diloco_job_unit_seconds:delta1h
        expr: sum by (use) (namespace_dilocojob_use:diloco_job_unit_seconds:delta1h)
      - record: diloco:goodput:ratio1h
        expr: >-
          sum (use:diloco_job_unit_seconds:delta1h{use="training"}) / (sum (use:diloco_job_unit_seconds:delta1h) > 0)
      - record: namespace_dilocojob:diloco_job_learners_contributing:ratio
        expr: >-
          sum by (namespace, dilocojob) (diloco_job_learners_contributing)
          / (sum by (namespace, dilocojob) (diloco_job_learners_desired) > 0)
      - record: namespace_dilocojob:diloco_job_tokens:rate5m
        # Not rate(): it takes a fall for a restart, after which all tokens would be new.
        expr: clamp_min(sum by (namespace, dilocojob) (delta(diloco_job_tokens_total[5m])), 0) / 300
      - record: namespace_dilocojob:diloco_job_interruptions:increase1d
        expr: sum by (namespace, dilocojob) (increase(diloco_job_interruptions_total[1d]))
      - record: accelerator_topology:diloco_fleet_slices_reserved:ratio
        expr: >-
          sum by (accelerator, topology) (diloco_fleet_slices{state="Reserved"})
          / (sum by (accelerator, topology) (diloco_fleet_slices) > 0)
      - record: controller:controller_runtime_reconcile_time_seconds:p99_5m
        expr: >-
          histogram_quantile(0.99, sum by (controller, le) (rate(controller_runtime_reconcile_time_seconds_bucket[5m])))
{{- end }}

"""PURE: what the operator reports of a job: conditions, status and Events, and when the job is over."""

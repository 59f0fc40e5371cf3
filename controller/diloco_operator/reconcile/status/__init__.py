"""PURE: what the operator says of a job: conditions, status and events, and when the job is over."""

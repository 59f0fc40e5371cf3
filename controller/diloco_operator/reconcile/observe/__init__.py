"""PURE: what a reconcile reads, as plain data: the job, its pods, its other objects, and what status has on record of its units."""

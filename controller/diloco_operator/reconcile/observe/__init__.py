"""PURE: what a pass reads, as plain data: the job, its pods, its other objects, and what is on record of its units."""

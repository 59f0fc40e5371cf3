"""Certificates of a job: what there are (`view`, pure), which there must be is reconcile's to say, and making them (`issuing`, the rim)."""

"""A job's parameters as one safetensors file, read from its snapshots: on a disk, behind a URI, or inside a pod that streams them.

`places` finds a snapshot, `model_file` makes the file from it, piece by piece. `python -m diloco.export` does both where the snapshots
are. Needs neither a framework nor Kubernetes.

See docs/decisions/0139-model-in-and-out.md.
"""

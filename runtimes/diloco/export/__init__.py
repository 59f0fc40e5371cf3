"""A job's parameters as one safetensors file, made from its snapshots: on a disk, behind a URI, or inside a pod that streams them.

`places` finds a snapshot, and `model_file` makes the file from it, piece by piece. `python -m diloco.export` does both, on the machine that
has the snapshots. This needs neither a framework nor Kubernetes.

See docs/decisions/0139-model-in-and-out.md.
"""

"""Real nodes on this machine: kubelets with containerd, in namespaces of their own that leave nothing behind.

`PYTHONPATH=hack python -m nodes check`    says whether this machine can have real nodes, and what is missing if not.
`PYTHONPATH=hack python -m nodes prepare`  brings programs and images into the cache (network, minutes, once).
`PYTHONPATH=hack python -m nodes run CMD…` runs a command where nodes can be started (`cluster.start`); everything ends with it.
"""

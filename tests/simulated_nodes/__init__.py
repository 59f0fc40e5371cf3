"""Simulated nodes for a real API server: the process kubelet of `diloco_local`, joined to a control plane that tests or people started.

Part of the tests' rig, not of the program: `PYTHONPATH=tests python -m simulated_nodes` joins them to a cluster (CONTRIBUTING.md).

See docs/decisions/0050-local-pods-and-nodes.md.
"""

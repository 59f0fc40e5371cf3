"""What the operator would do: the operator itself on virtual time, in an API server in memory, on a fleet from a file or from a cluster.

See docs/decisions/0214-plan.md.
"""

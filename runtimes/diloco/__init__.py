"""The data plane of Decoupled DiLoCo: syncer, learner driver and adapters for torch and JAX. Independent of Kubernetes.

Import `diloco.torch` or `diloco.jax`; this package itself exports nothing.

See docs/decisions/0001-distribution-and-packages.md.
"""

__all__: list[str] = []

"""The data plane of Decoupled DiLoCo: syncer, learner driver and adapters for torch and JAX. Independent of Kubernetes.

Import `diloco.torch` or `diloco.jax`; this package itself exports nothing.

See docs/decisions/0107-packages-and-images.md.
"""

import os

# With fork support, gRPC stops its threads at a fork and starts them again in parent and child, as if the child would go on to use gRPC.
# If one of the threads is busy, it does half of that, and the child may hang, even a child that only starts another program. Our children,
# and those of training programs, do not use our connections. gRPC reads the variable at import; a program that uses gRPC in a forked child
# sets it to 1.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

__all__: list[str] = []

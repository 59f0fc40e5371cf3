"""The data plane of Decoupled DiLoCo: syncer, learner driver and adapters for torch and JAX. Independent of Kubernetes.

Import `diloco.torch` or `diloco.jax`; this package itself exports nothing.

See docs/decisions/0107-packages-and-images.md.
"""

import os

# gRPC gets ready for a fork as if the child would go on to use gRPC: it stops its threads and starts them again in parent and child. Where
# one of them is busy it does half of that, and the child may hang, even one that only starts another program. Children of ours and of
# training programs do not use our connections. gRPC reads this when it is imported; who forks and uses gRPC in the child sets it to 1.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

__all__: list[str] = []

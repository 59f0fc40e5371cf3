"""What we use of the official client: its readers of kubeconfigs. The packages themselves import its synchronous half too, which costs each
command a fifth of a second and 8 MiB.

See docs/decisions/0086-reading-the-api.md.
"""

from __future__ import annotations

from diloco_operator.kube.imports import without_init

with without_init("kubernetes", "kubernetes.aio"):
    from kubernetes.aio.client import Configuration
    from kubernetes.aio.config import ConfigException
    from kubernetes.aio.config.exec_provider import ExecProvider
    from kubernetes.aio.config.incluster_config import InClusterConfigLoader
    from kubernetes.aio.config.kube_config import ConfigNode, FileOrData, KubeConfigLoader, KubeConfigMerger

__all__ = ["ConfigException", "ConfigNode", "Configuration", "ExecProvider", "FileOrData"]
__all__ += ["InClusterConfigLoader", "KubeConfigLoader", "KubeConfigMerger"]

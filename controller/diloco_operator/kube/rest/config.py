"""Finding a cluster: an explicit kubeconfig, else KUBECONFIG, else the pod's ServiceAccount, else ~/.kube/config."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from diloco_operator.kube.rest.config_error import ConfigError
from diloco_operator.kube.rest.credentials import Credentials, Tls
from diloco_operator.kube.rest.kubeconfig import Kubeconfig
from diloco_operator.kube.rest.proxy import proxy_of

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_IN_CLUSTER = "KUBERNETES_SERVICE_HOST"


class ClientConfig(Protocol):
    """A way to a cluster."""

    @property
    def source(self) -> str:
        """Where it was found, human-readable."""
        ...

    @property
    def namespace(self) -> str:
        """The pod's own namespace, or that of the kubeconfig's context; "" if none is given."""
        ...

    async def credentials(self, *, fresh: bool = False) -> Credentials:
        """Read the files again and return the credentials. `fresh`: the server rejected the last ones, so an exec plugin runs again
        although they have not expired. Raises `ConfigError`."""
        ...


def load_config(
    kubeconfig: str | Path = "",
    context: str = "",
    *,
    environ: Mapping[str, str] | None = None,
    service_account: Path = SERVICE_ACCOUNT,
    home: Path | None = None,
) -> ClientConfig:
    """Find the cluster configuration. `context`: a context of the kubeconfig, "" for its current one.

    Raises a `ConfigError` that says what was tried. A configuration that is named explicitly must work: no other is tried after it.
    """
    environ = os.environ if environ is None else environ
    if kubeconfig:
        return Kubeconfig.load([Path(kubeconfig).expanduser()], context, environ, "the given kubeconfig")
    tried = ["no kubeconfig was given"]
    if environ.get("KUBECONFIG"):
        paths = [Path(each).expanduser() for each in environ["KUBECONFIG"].split(os.pathsep) if each]
        return Kubeconfig.load(paths, context, environ, "KUBECONFIG")
    tried.append("KUBECONFIG is not set")
    if not environ.get(_IN_CLUSTER):
        tried.append(f"{_IN_CLUSTER} is not set, so this process is not in a pod of a cluster")
    elif context:
        tried.append(f"a context was given ({context}), but the ServiceAccount of a pod has no contexts")
    elif not (service_account / "token").is_file():
        tried.append(f"{_IN_CLUSTER} is set, but {service_account / 'token'} is missing: the pod mounts no ServiceAccount token")
    else:
        return InCluster.load(service_account, environ)
    default = (home or Path.home()) / ".kube" / "config"
    if default.is_file():
        return Kubeconfig.load([default], context, environ, "the default kubeconfig")
    tried.append(f"{default} does not exist")
    raise ConfigError(f"no Kubernetes cluster is configured: {'; '.join(tried)}. Give a kubeconfig with --kubeconfig")


@dataclass(frozen=True, slots=True)
class InCluster:
    """The ServiceAccount of the pod in which this process runs. Its token rotates, so the file is read each time."""

    folder: Path
    environ: Mapping[str, str]
    namespace: str

    @classmethod
    def load(cls, folder: Path, environ: Mapping[str, str]) -> InCluster:
        namespace_file = folder / "namespace"
        config = cls(folder, environ, namespace_file.read_text().strip() if namespace_file.is_file() else "")
        config._read()
        return config

    @property
    def source(self) -> str:
        return f"the pod's ServiceAccount ({self.folder})"

    async def credentials(self, *, fresh: bool = False) -> Credentials:
        return self._read()

    def _read(self) -> Credentials:
        host = self.environ[_IN_CLUSTER]
        server = f"https://{f'[{host}]' if ':' in host else host}:{self.environ.get('KUBERNETES_SERVICE_PORT', '443')}"
        try:
            token = (self.folder / "token").read_text().strip()
            if not token:
                raise ConfigError(f"{self.source}: the token is empty")
            return Credentials(
                server=server,
                authorization=f"Bearer {token}",
                tls=Tls.of_files(ca_file=str(self.folder / "ca.crt")),
                proxy=proxy_of(server, self.environ),
            )
        except OSError as error:
            raise ConfigError(f"{self.source}: {error}") from error

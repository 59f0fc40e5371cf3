"""A kubeconfig: clusters, users, contexts, as the official client reads them.

It corrects the official loader only where that would silently use another cluster or identity than kubectl. With several files the official
loader takes the last one's current-context (kubectl: the first's), it continues without credentials when an exec plugin fails, and it
ignores `as`.

See docs/decisions/0086-reading-the-api.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from diloco_operator.kube.imports import without_init
from diloco_operator.kube.rest.config_error import ConfigError
from diloco_operator.kube.rest.credentials import Credentials, Tls
from diloco_operator.kube.rest.proxy import proxy_of

with without_init("kubernetes", "kubernetes.aio"):  # their own imports cost each command a fifth of a second and 8 MiB
    from kubernetes.aio.client import Configuration
    from kubernetes.aio.config import ConfigException
    from kubernetes.aio.config.kube_config import ConfigNode, KubeConfigLoader, KubeConfigMerger

_UNSUPPORTED = ("as", "as-uid", "as-groups", "as-user-extra")
_PROXY_SCHEMES = ("http://", "https://")


class Kubeconfig:
    """One context of a kubeconfig of one or more files. The files are read again for each set of credentials, since tokens and certificates
    rotate. Credentials from an exec plugin are kept until they expire."""

    def __init__(self, paths: Sequence[Path], context: str, environ: Mapping[str, str], named_by: str) -> None:
        self._paths = [path for path in paths if path.exists()]
        self._environ = environ
        self.source = f"{named_by} {', '.join(map(str, self._paths or paths))}"
        if not self._paths:
            raise ConfigError(f"{self.source} does not exist")
        self._context = context
        self._from_plugin: Credentials | None = None
        self.namespace: str = ""

    @classmethod
    def load(cls, paths: Sequence[Path], context: str, environ: Mapping[str, str], named_by: str) -> Kubeconfig:
        """Raise `ConfigError` if the files are wrong. The context is fixed here: a later change of current-context, as with `kubectl config
        use-context`, must not send a running process to another cluster."""
        config = cls(paths, context, environ, named_by)
        current = config._loader().current_context
        config._context = current["name"]
        config.namespace = current["context"].get("namespace") or ""
        return config

    async def credentials(self, *, fresh: bool = False) -> Credentials:
        if self._from_plugin is not None and not fresh:
            return self._from_plugin
        loader = self._loader()
        configuration = Configuration()
        try:
            await loader.load_and_set(configuration)  # type: ignore[no-untyped-call]
            credentials = Credentials(
                server=configuration.host,
                authorization=(configuration.api_key.get("BearerToken") or "").strip(),
                tls=Tls.of_files(
                    ca_file=configuration.ssl_ca_cert or "",
                    cert_file=configuration.cert_file or "",
                    key_file=configuration.key_file or "",
                    verify=configuration.verify_ssl,
                    server_name=configuration.tls_server_name or "",
                ),
                proxy=configuration.proxy or proxy_of(configuration.host, self._environ),
                expires=loader.expires,
            )
        except (ConfigException, OSError, ValueError) as error:
            raise ConfigError(f"{self.source}, context {self._context!r}: {error}") from error
        if credentials.proxy and not credentials.proxy.startswith(_PROXY_SCHEMES):
            raise ConfigError(f"{self.source}: the proxy {credentials.proxy!r} is not supported: it must begin with http:// or https://")
        if loader.plugin is not None:
            self._from_plugin = credentials
        return credentials

    def _loader(self) -> _Loader:
        try:
            merged = KubeConfigMerger(":".join(map(str, self._paths)))
            named = (file.get("current-context") for file in merged.config_files.values())
            return _Loader(merged.config, self._context or next(filter(None, named), ""))
        except ConfigException as error:
            raise ConfigError(f"{self.source}: {error}") from error
        except (yaml.YAMLError, OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{self.source} cannot be read: {error}") from error
        except (AttributeError, KeyError, TypeError) as error:  # the official loader takes the file's shape for granted
            raise ConfigError(f"{self.source} is not a kubeconfig: {error}") from error


class _Loader(KubeConfigLoader):
    """The official loader for one context of the merged files."""

    def __init__(self, config: ConfigNode, context: str) -> None:
        if not context:
            raise ConfigException("current-context is not set")
        if config["contexts"].get_with_name(context, safe=True) is None:
            existing = ", ".join(str(each["name"]) for each in config["contexts"].value)
            raise ConfigException(f"there is no context {context!r}; {f'there are: {existing}' if existing else 'there are none'}")
        super().__init__(config, active_context=context, config_base_path=None)  # type: ignore[no-untyped-call]
        user = self.current_context["context"].get("user")
        if self._user is None:
            if user:
                raise ConfigException(f"context {context!r}: there is no user {user!r}")
            self._user = ConfigNode("anonymous", {})
        unsupported = [name for name in _UNSUPPORTED if name in self._user]
        if unsupported:
            raise ConfigException(f"user {user!r}: {', '.join(unsupported)} (impersonation) is not supported")

    @property
    def plugin(self) -> Any | None:
        """The exec plugin that makes the credentials, or None."""
        return self._user.safe_get("exec") if self._user is not None else None

    @property
    def expires(self) -> float | None:
        """When the plugin's token expires, in seconds since the epoch. None if that is unknown."""
        expiry = getattr(self, "exec_plugin_expiry", None)
        return expiry.timestamp() if expiry is not None else None

    async def load_from_exec_plugin(self) -> bool:
        """Load credentials from the plugin. Raises ConfigException if it gives none, where the official method only logs why."""
        if await super().load_from_exec_plugin() and {"token", "cert_file"} & vars(self).keys():  # type: ignore[no-untyped-call]
            return True
        plugin = self.plugin or {}
        hint = f". {plugin['installHint']}" if plugin.get("installHint") else ""
        raise ConfigException(f"the exec plugin {plugin.get('command')!r} gave no credentials; the log says why{hint}")

"""A kubeconfig: clusters, users, contexts, as kubectl reads them.

The loader is that of the official client, with fixes where it silently differs from kubectl: with several files it takes the last one's
current-context (kubectl: the first's); it continues without credentials when an exec plugin fails; it prefers `token` to `tokenFile` and
keeps the newline at the end of that file; it ignores `as`.

See docs/decisions/0086-reading-the-api.md.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from diloco_operator.kube.rest.config_error import ConfigError
from diloco_operator.kube.rest.credentials import Credentials, Tls
from diloco_operator.kube.rest.official_client import (
    ConfigException,
    ConfigNode,
    Configuration,
    ExecProvider,
    FileOrData,
    KubeConfigLoader,
    KubeConfigMerger,
)
from diloco_operator.kube.rest.proxy import proxy_of
from diloco_operator.kube.timestamps import parse_timestamp

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
        loader = config._loader()
        config._context = loader.context_name
        config.namespace = loader.context.get("namespace") or ""
        return config

    async def credentials(self, *, fresh: bool = False) -> Credentials:
        if self._from_plugin is not None and not fresh:
            return self._from_plugin
        loader = self._loader()
        configuration = Configuration()
        try:
            await loader.load_and_set(configuration)  # type: ignore[no-untyped-call]
            found = Credentials(
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
            raise ConfigError(f"{self.source}, context {loader.context_name!r}: {error}") from error
        if found.proxy and not found.proxy.startswith(_PROXY_SCHEMES):
            raise ConfigError(f"{self.source}: the proxy {found.proxy!r} is not supported: it must begin with http:// or https://")
        if loader.plugin:
            self._from_plugin = found
        return found

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
        self.expires: float | None = None
        self.plugin = False
        """Whether an exec plugin makes the credentials."""
        contexts = {each["name"]: each["context"] for each in map(_plain, config["contexts"].value)}
        if context not in contexts:
            known = ", ".join(contexts) or "none"
            raise ConfigException(f"there is no context {context!r}, only: {known}" if context else "current-context is not set")
        self.context_name = context
        self.context: dict[str, Any] = contexts[context]
        users = config["users"].value
        for index, node in enumerate(users):
            if _plain(node)["name"] == self.context.get("user"):
                users[index] = self._corrected(node)
                break
        else:
            if self.context.get("user"):
                raise ConfigException(f"context {context!r}: there is no user {self.context['user']!r}")
            self.context["user"] = "anonymous"
            users.append(ConfigNode("anonymous", {"name": "anonymous", "user": {}}, config.path))
        super().__init__(config, active_context=context, config_base_path=None)  # type: ignore[no-untyped-call]

    def _corrected(self, node: ConfigNode) -> ConfigNode:
        """Return a user entry, changed so that the official loader treats it as kubectl does."""
        entry = copy.deepcopy(_plain(node))
        user = entry["user"] = entry.get("user") or {}
        unsupported = [name for name in _UNSUPPORTED if name in user]
        if unsupported:
            raise ConfigException(f"user {entry['name']!r}: {', '.join(unsupported)} (impersonation) is not supported")
        if user.get("tokenFile"):
            user.pop("token", None)
        self.plugin = "exec" in user
        command = (user.get("exec") or {}).get("command", "")
        if "/" in command:  # for kubectl it is relative to the kubeconfig, not to the working directory
            user["exec"]["command"] = str(Path(node.path or "").absolute().parent / command)
        return ConfigNode(node.name, entry, node.path)

    async def load_from_exec_plugin(self) -> bool:
        """Load credentials from the plugin; unlike the official method this raises ConfigException if the plugin fails or returns
        nothing."""
        node: ConfigNode = self._user["exec"]  # type: ignore[index]  # called only for a user with one
        command = node["command"]
        try:
            status = await ExecProvider(node).run()
        except (FileNotFoundError, PermissionError) as error:
            hint = f". {node.safe_get('installHint')}" if node.safe_get("installHint") else ""
            raise ConfigException(f"the exec plugin {command!r} cannot be run: {error}{hint}") from error
        except ConfigException as error:
            raise ConfigException(f"the exec plugin {command!r} failed: {error}") from error
        if status.get("token"):
            self.token = f"Bearer {status['token']}"
        if status.get("clientCertificateData"):
            if not status.get("clientKeyData"):
                raise ConfigException(f"the exec plugin {command!r} returned clientCertificateData without clientKeyData")
            self.cert_file, self.key_file = (
                FileOrData(status, None, data_key_name=name, base64_file_content=False).as_file()
                for name in ("clientCertificateData", "clientKeyData")
            )
        if not status.get("token") and not status.get("clientCertificateData"):
            raise ConfigException(f"the exec plugin {command!r} returned neither a token nor a client certificate")
        if status.get("expirationTimestamp"):
            self.expires = parse_timestamp(status["expirationTimestamp"])
        return True


def _plain(node: ConfigNode | dict[str, Any]) -> dict[str, Any]:
    """Return a list entry without the wrapper of the official merger."""
    value: dict[str, Any] = node.value if isinstance(node, ConfigNode) else node
    return value

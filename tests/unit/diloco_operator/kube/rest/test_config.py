"""How a cluster is found, and the error if there is none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from diloco_operator.kube.rest import ConfigError, load_config

_CERTIFICATE = """-----BEGIN CERTIFICATE-----
-----END CERTIFICATE-----
"""


def _write(path: Path, server: str = "http://a:1", current: str = "x", **user: Any) -> Path:
    content = {
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": user}],
        "contexts": [
            {"name": "x", "context": {"cluster": "c", "user": "u", "namespace": "mine"}},
            {"name": "y", "context": {"cluster": "c"}},
        ],
        "current-context": current,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path


def _account(folder: Path, token: str = "t") -> Path:
    folder.mkdir(parents=True)
    (folder / "token").write_text(token)
    (folder / "ca.crt").write_text(_CERTIFICATE)
    (folder / "namespace").write_text("pods-own\n")
    return folder


_POD = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}


async def test_explicit_kubeconfig_comes_before_everything(tmp_path: Path) -> None:
    environ = {**_POD, "KUBECONFIG": str(_write(tmp_path / "env", "http://env:1"))}
    config = load_config(_write(tmp_path / "given", "http://given:1"), environ=environ, service_account=_account(tmp_path / "sa"))
    assert (await config.credentials()).server == "http://given:1"
    assert config.namespace == "mine"
    assert "given" in config.source


async def test_environment_comes_before_the_pods_account_and_that_before_home(tmp_path: Path) -> None:
    _write(tmp_path / ".kube/config", "http://home:1")
    account = _account(tmp_path / "sa", "secret\n")
    environ = {**_POD, "KUBECONFIG": str(_write(tmp_path / "env", "http://env:1"))}
    assert (await load_config(environ=environ, service_account=account, home=tmp_path).credentials()).server == "http://env:1"
    pod = load_config(environ=_POD, service_account=account, home=tmp_path)
    found = await pod.credentials()
    assert (found.server, found.authorization.lower(), pod.namespace) == ("https://10.96.0.1:443", "bearer secret", "pods-own")
    assert (await load_config(environ={}, service_account=account, home=tmp_path).credentials()).server == "http://home:1"


async def test_pods_token_is_read_anew(tmp_path: Path) -> None:
    account = _account(tmp_path / "sa", "one")
    config = load_config(environ=_POD, service_account=account)
    assert (await config.credentials()).authorization.endswith("one")
    (account / "token").write_text("two")
    assert (await config.credentials()).authorization.endswith("two")


def test_pods_account_goes_past_a_proxy_that_spares_the_service_network(tmp_path: Path) -> None:
    environ = {**_POD, "HTTPS_PROXY": "http://proxy:3128", "NO_PROXY": ".svc,10.96.0.0/12"}
    config = load_config(environ=environ, service_account=_account(tmp_path / "sa"))
    assert config._read().proxy == ""  # type: ignore[attr-defined]


def test_if_nothing_is_found_everything_that_was_tried_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        load_config(environ={}, service_account=tmp_path / "none", home=tmp_path)
    for words in ("no kubeconfig was given", "KUBECONFIG is not set", "KUBERNETES_SERVICE_HOST is not set", ".kube/config does not exist"):
        assert words in str(error.value)
    with pytest.raises(ConfigError, match="mounts no ServiceAccount token"):
        load_config(environ=_POD, service_account=tmp_path / "none", home=tmp_path)


def test_kubeconfig_that_is_named_but_missing_is_an_error_whatever_else_there_is(tmp_path: Path) -> None:
    _write(tmp_path / ".kube/config")
    with pytest.raises(ConfigError, match="nowhere"):
        load_config(tmp_path / "nowhere", environ={}, home=tmp_path)
    with pytest.raises(ConfigError, match="nowhere"):
        load_config(environ={"KUBECONFIG": str(tmp_path / "nowhere")}, home=tmp_path)


@pytest.mark.parametrize("content", ["", "[]", "not: [yaml", "clusters: 3", "contexts: [{}]\ncurrent-context: x", "\xff\x00"])
def test_file_that_is_no_kubeconfig_is_named(tmp_path: Path, content: str) -> None:
    path = tmp_path / "broken"
    path.write_text(content, encoding="latin-1")
    with pytest.raises(ConfigError, match="broken"):
        load_config(path, environ={})


def test_missing_context_is_reported(tmp_path: Path) -> None:
    path = _write(tmp_path / "k")
    with pytest.raises(ConfigError, match="there is no context 'z'; there are: x, y"):
        load_config(path, "z", environ={})
    with pytest.raises(ConfigError, match="current-context is not set"):
        load_config(_write(tmp_path / "k", current=""), environ={})


async def test_first_file_of_several_names_the_context_as_with_kubectl(tmp_path: Path) -> None:
    first, second = _write(tmp_path / "one", "http://one:1", "x"), _write(tmp_path / "two", "http://two:1", "y")
    config = load_config(environ={"KUBECONFIG": f"{first}:{tmp_path / 'missing'}:{second}"})
    assert config.namespace == "mine"  # x, not y, has one
    assert (await config.credentials()).server == "http://one:1"


async def test_context_is_fixed_when_the_file_is_first_read(tmp_path: Path) -> None:
    path = _write(tmp_path / "k", token="t")
    config = load_config(path, environ={})
    _write(path, current="y", token="t2")
    assert (await config.credentials()).authorization == "Bearer t2"  # y has no user


async def test_token_file_lies_beside_the_kubeconfig(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("fresh\n")
    config = load_config(_write(tmp_path / "k", tokenFile="token"), environ={})
    assert (await config.credentials()).authorization == "Bearer fresh"


async def test_https_without_a_user_is_anonymous_and_no_crash(tmp_path: Path) -> None:
    config = load_config(_write(tmp_path / "k", "https://a:1"), "y", environ={})
    found = await config.credentials()
    assert (found.authorization, found.tls.cert_file) == ("", "")


def test_impersonation_is_an_error_and_not_ignored(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="impersonation"):
        load_config(_write(tmp_path / "k", **{"token": "t", "as": "somebody"}), environ={})


async def test_proxy_of_an_unsupported_kind_is_an_error(tmp_path: Path) -> None:
    config = load_config(_write(tmp_path / "k", "https://api.example"), environ={"HTTPS_PROXY": "socks5://proxy:1080"})
    with pytest.raises(ConfigError, match="must begin with http:// or https://"):
        await config.credentials()


async def test_certificate_that_is_missing_is_named(tmp_path: Path) -> None:
    config = load_config(_write(tmp_path / "k", "https://a:1", **{"client-certificate": "gone.crt", "client-key": "gone.key"}), environ={})
    with pytest.raises(ConfigError, match=r"gone\.crt"):
        await config.credentials()

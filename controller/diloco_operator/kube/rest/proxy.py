"""Which proxy to use for a server, from the environment: the rules of Go's net/http, which kubectl follows. Pure.

urllib and aiohttp do not know all of these rules: they ignore a CIDR in NO_PROXY, which is usual for an operator behind a proxy.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from urllib.parse import urlsplit


def proxy_of(server: str, environ: Mapping[str, str]) -> str:
    """Return the proxy's URL for the URL `server`; "": no proxy. This machine itself never needs one.

    HTTPS_PROXY or HTTP_PROXY by the server's scheme, in upper or lower case. NO_PROXY: names with their subdomains (`.x`: without x itself)
    and addresses, each with or without a port; CIDRs; `*` for everything.
    """
    url = urlsplit(server)
    proxy = _variable(environ, f"{url.scheme}_proxy")
    if not proxy or url.hostname is None:
        return ""
    port = url.port or (443 if url.scheme == "https" else 80)
    if _bypassed(url.hostname.rstrip("."), port, _variable(environ, "no_proxy")):
        return ""
    return proxy if "://" in proxy else f"http://{proxy}"


def _variable(environ: Mapping[str, str], name: str) -> str:
    return environ.get(name.upper()) or environ.get(name) or ""


def _bypassed(host: str, port: int, no_proxy: str) -> bool:
    address = _address(host)
    if host == "localhost" or (address is not None and address.is_loopback):
        return True
    return any(_matches(entry.strip().lower(), host, address, port) for entry in no_proxy.split(",") if entry.strip())


def _matches(entry: str, host: str, address: ipaddress.IPv4Address | ipaddress.IPv6Address | None, port: int) -> bool:
    if entry == "*":
        return True
    if "/" in entry:
        try:
            network = ipaddress.ip_network(entry, strict=False)
        except ValueError:
            return False
        return address is not None and address in network
    name, wanted_port = _split_port(entry)
    if wanted_port and wanted_port != str(port):
        return False
    entry_address = _address(name)
    if entry_address is not None:
        return entry_address == address
    if name.startswith("*."):
        name = name[1:]
    return host.endswith(name) if name.startswith(".") else host == name or host.endswith(f".{name}")


def _split_port(entry: str) -> tuple[str, str]:
    if entry.startswith("["):
        name, _, port = entry[1:].partition("]")
        return name, port.removeprefix(":")
    if entry.count(":") == 1:
        name, _, port = entry.partition(":")
        return name, port
    return entry, ""


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None

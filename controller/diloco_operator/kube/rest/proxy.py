"""Which proxy to use for a server, from the environment. Pure.

The rules are Python's, with two of kubectl's beside them: a CIDR in NO_PROXY, which is usual for an operator behind a proxy, and no proxy
for this machine itself.

See docs/decisions/0086-reading-the-api.md.
"""

from __future__ import annotations

import contextlib
import ipaddress
from collections.abc import Iterator, Mapping
from urllib.parse import SplitResult, urlsplit
from urllib.request import proxy_bypass_environment  # type: ignore[attr-defined]  # typeshed lacks it


def proxy_of(server: str, environ: Mapping[str, str]) -> str:
    """Return the proxy's URL for the URL `server`, or "" for no proxy.

    The variable is HTTPS_PROXY or HTTP_PROXY by the server's scheme, in upper or lower case. NO_PROXY has names, which stand for their
    subdomains too, and addresses, each with or without a port; CIDRs; `*` for everything.
    """
    url = urlsplit(server)
    proxy = _variable(environ, f"{url.scheme}_proxy")
    if not proxy or url.hostname is None or _bypassed(url, _variable(environ, "no_proxy")):
        return ""
    return proxy if "://" in proxy else f"http://{proxy}"


def _variable(environ: Mapping[str, str], name: str) -> str:
    return environ.get(name.upper()) or environ.get(name) or ""


def _bypassed(url: SplitResult, no_proxy: str) -> bool:
    if url.hostname == "localhost" or proxy_bypass_environment(url.netloc, {"no": no_proxy}):
        return True
    try:
        address = ipaddress.ip_address(url.hostname or "")
    except ValueError:
        return False
    return address.is_loopback or any(address in network for network in _networks(no_proxy))


def _networks(no_proxy: str) -> Iterator[ipaddress.IPv4Network | ipaddress.IPv6Network]:
    for entry in no_proxy.split(","):
        with contextlib.suppress(ValueError):  # a name
            yield ipaddress.ip_network(entry.strip(), strict=False)

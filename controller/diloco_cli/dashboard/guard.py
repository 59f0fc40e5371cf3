"""Lets a request through only if it has the token, names the dashboard's own host, and comes from no page of another origin.

A page of another site in the same browser can send requests to localhost, but it does not know the token. If its name resolves to
127.0.0.1, the browser sends that name as Host. If it asks across origins, the browser sends its origin as Origin.

See docs/decisions/0274-dashboard.md.
"""

from __future__ import annotations

import hmac

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Guard:
    """Passes allowed requests on to `app`, and adds the security headers to every answer. `port` is the one that `app` listens on."""

    def __init__(self, app: ASGIApp, token: str, port: int) -> None:
        self._app = app
        self._token = token
        self._hosts = {f"{host}:{port}" for host in ("127.0.0.1", "localhost")}
        self._origins = {f"http://{host}" for host in self._hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http", "the server has neither lifespan nor web sockets"

        async def with_policy(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        why = self._refused(scope)
        app: ASGIApp = PlainTextResponse(f"{why}\n", status_code=403) if why else self._app
        await app(scope, receive, with_policy)

    def _refused(self, scope: Scope) -> str:
        """Why the request is refused, or "" if it is not."""
        headers = Headers(scope=scope)
        if headers.getlist("host") not in [[host] for host in self._hosts]:
            return "The dashboard answers by its own address only: open the one that the command has printed."
        if any(origin not in self._origins for origin in headers.getlist("origin")):
            return "The dashboard answers no page of another origin."
        given = str(scope["path"]).split("/", 2)[1]
        if not hmac.compare_digest(given.encode(), self._token.encode()):
            return "The token of this address is not that of the dashboard: open the one that the command has printed."
        return ""

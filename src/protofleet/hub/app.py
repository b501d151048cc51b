"""The hub as a web application (ASGI): files, ``/healthz``, bridge, dashboard and metrics."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse
from starlette.routing import BaseRoute, Mount, Route, WebSocketRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from protofleet.hub.bridge import Bridge
from protofleet.hub.dashboard.access import PATH as DASHBOARD
from protofleet.hub.dashboard.app import POLICY as DASHBOARD_POLICY
from protofleet.hub.dashboard.app import Dashboard
from protofleet.hub.metrics import PATH as METRICS
from protofleet.hub.metrics import MetricsPage
from protofleet.hub.names import Names, is_same_origin
from protofleet.hub.site import Resource, Site
from protofleet.threads import prepare_records

PIECE_BYTES = 64 * 1024
# onnxruntime-web compiles wasm; all else that could run comes from here. 'self' of connect-src is
# wss: too in every browser that we support.
_POLICY = (
    "default-src 'none'",
    "script-src 'self' 'wasm-unsafe-eval'",
    "worker-src 'self'",
    "style-src 'self'",
    "img-src 'self' data: blob:",
    "media-src 'self' blob:",
    "font-src 'self'",
    "manifest-src 'self'",
    "base-uri 'none'",
    "form-action 'none'",
    "frame-ancestors 'none'",
)
_SECURITY = {
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "accelerometer=(self), gyroscope=(self), camera=(self), "
    "screen-wake-lock=(self), geolocation=(), microphone=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def make_app(  # noqa: PLR0913 - the parts of a hub, each of which may be missing
    names: Names,
    *,
    site: Site | None = None,
    bridge: Bridge | None = None,
    dashboard: Dashboard | None = None,
    metrics: MetricsPage | None = None,
    websocket: str = "",
) -> ASGIApp:
    """The application.

    Args:
        names: by which it may be asked for.
        site: what phones are served; None: nothing, and who asks is sent to the dashboard.
        bridge: to the broker, for phones.
        dashboard: None: there is none.
        metrics: None: there are none.
        websocket: what the phones' page may connect to beside the hub, as a source of a Content
            Security Policy; '' for nothing.
    """
    prepare_records()  # threads of the server read runs

    async def healthz(_: Request) -> JSONResponse:
        answers = bridge is None or await bridge.broker_answers()
        found = {"broker": answers, "connections": 0 if bridge is None else bridge.open}
        return JSONResponse(found, 200 if answers else 503, {"Cache-Control": "no-store"})

    async def to_dashboard(_: Request) -> RedirectResponse:
        return RedirectResponse(f"{DASHBOARD}/", 303)

    routes: list[BaseRoute] = [Route("/healthz", healthz)]
    if bridge is not None:
        routes.append(WebSocketRoute("/mqtt", bridge.serve))
    if dashboard is not None:
        routes += [Route(DASHBOARD, to_dashboard), Mount(DASHBOARD, dashboard.app)]
    if metrics is not None:
        routes.append(Route(METRICS, metrics.endpoint))
    routes.append(Route("/", to_dashboard) if site is None else Mount("/", _Files(site)))
    return _Guard(Starlette(routes=routes), names, websocket)


class _Guard:
    """Refuses names that are not the hub's and pages of others; adds what browsers shall forbid."""

    def __init__(self, app: ASGIApp, names: Names, websocket: str) -> None:
        self._app, self._names = app, names
        connect = f"connect-src 'self' {websocket}".rstrip()
        self._headers = {**_SECURITY, "Content-Security-Policy": "; ".join((*_POLICY, connect))}
        self._dashboard = {
            **_SECURITY,
            # A form without any referrer would come without its origin, too.
            "Referrer-Policy": "same-origin",
            "Content-Security-Policy": "; ".join(DASHBOARD_POLICY),
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        below = f"{scope['path']}/".startswith(f"{DASHBOARD}/")
        added = self._dashboard if below else self._headers

        async def secured(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(added)
            await send(message)

        headers = Headers(scope=scope)
        host, origin = headers.get("host", ""), headers.get("origin")
        app: ASGIApp = self._app
        if not self._names.know(host):
            text = f"{host[:80]!r}: not a name of this hub; start it with --host NAME\n"
            app = PlainTextResponse(text, 421)
        elif scope["type"] == "websocket" and origin and not is_same_origin(origin, host):
            app = PlainTextResponse("expected a page of this hub\n", 403)
        await app(scope, receive, secured)


class _Files:
    """Answers GET and HEAD from the site, in pieces that wait for slow readers."""

    def __init__(self, site: Site) -> None:
        self._site = site

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await PlainTextResponse("not found\n", 404)(scope, receive, send)
            return
        resource = self._site.get(scope["path"])
        if resource is None:
            await PlainTextResponse("not found\n", 404)(scope, receive, send)
        elif scope["method"] not in ("GET", "HEAD"):
            allowed = {"Allow": "GET, HEAD"}
            await PlainTextResponse("not allowed\n", 405, allowed)(scope, receive, send)
        else:
            await _answer(resource, scope, send)


async def _answer(resource: Resource, scope: Scope, send: Send) -> None:
    asked = Headers(scope=scope)
    encoding, body = _chosen(resource, asked.get("accept-encoding", ""))
    headers = MutableHeaders({"Cache-Control": resource.cache, "ETag": resource.etag})
    if resource.encoded:
        headers["Vary"] = "Accept-Encoding"
    if resource.etag in asked.get("if-none-match", ""):
        await send({"type": "http.response.start", "status": 304, "headers": headers.raw})
        await send({"type": "http.response.body"})
        return
    headers["Content-Type"] = resource.content_type
    headers["Content-Length"] = str(len(body))
    if encoding:
        headers["Content-Encoding"] = encoding
    await send({"type": "http.response.start", "status": 200, "headers": headers.raw})
    size = 0 if scope["method"] == "HEAD" else len(body)
    for start in range(0, size, PIECE_BYTES):
        piece = body[start : start + PIECE_BYTES]
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body"})


def _chosen(resource: Resource, accepted: str) -> tuple[str, bytes]:
    """The best encoding that a browser takes, and the bytes."""
    taken = {part.partition(";")[0].strip(): part.partition(";")[2] for part in accepted.split(",")}
    for name, body in resource.encoded.items():
        if name in taken and taken[name].replace(" ", "") not in ("q=0", "q=0.0"):
            return name, body
    return "", resource.body

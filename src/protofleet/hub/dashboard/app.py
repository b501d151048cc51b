"""The dashboard as a web application: pages, what they load, the stream of changes, signing in."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote

import jinja2
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import (
    HTMLResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route

from protofleet import units
from protofleet.errors import ProtofleetError
from protofleet.hub.dashboard.access import COOKIE, PATH, Access, from_own_page
from protofleet.hub.dashboard.actions import ACTIONS, Action, ActionResult
from protofleet.hub.dashboard.pages import PageRequest
from protofleet.hub.dashboard.pages.menu import PAGES
from protofleet.hub.dashboard.trail import cut
from protofleet.hub.dashboard.watch import Watch, WatchedRun
from protofleet.printable import printable

POLICY = (
    "default-src 'none'",
    "script-src 'self'",
    "style-src 'self'",
    "img-src 'self' data:",
    "connect-src 'self'",
    "base-uri 'none'",
    "form-action 'self'",
    "frame-ancestors 'none'",
)
"""Content Security Policy of its pages: no inline script or style, nothing of others."""
_TYPES = {
    ".css": "text/css",
    ".js": "text/javascript",
    ".txt": "text/plain",
    ".svg": "image/svg+xml",
}
_FORM_BYTES = 8192
_STREAMS = 128
_FOLDER = Path(str(files("protofleet.hub.dashboard")))


class Dashboard:
    """Answers what is asked below ``/dashboard``.

    Args:
        watch: the runs.
        access: who may look and act.

    Attributes:
        app: the application.
        phones: key of the run whose page for phones the hub serves, and the address of that.
    """

    def __init__(self, watch: Watch, access: Access) -> None:
        self._watch, self._access = watch, access
        self._static = {path.name: path.read_bytes() for path in (_FOLDER / "static").iterdir()}
        self._templates = jinja2.Environment(
            loader=jinja2.FileSystemLoader(_FOLDER / "templates"),
            autoescape=True,
            trim_blocks=True,
            lstrip_blocks=True,
            undefined=jinja2.StrictUndefined,
        )
        self._templates.filters.update(
            bytes=units.byte_text,
            ms=units.ms_text,
            duration=units.duration_text,
            clock=units.clock_text,
            printable=printable,
            segment=lambda text: quote(text, safe=""),
        )
        self._streams = 0
        self._acting = asyncio.Lock()
        self.phones = ("", "")
        self.app = Starlette(
            routes=[
                Route("/", self._first),
                Route("/events", self._events),
                Route("/sign-in", self._sign_in, methods=["GET", "POST"]),
                Route("/sign-out", self._sign_out, methods=["POST"]),
                Route("/static/{name}", self._file),
                Route("/{run}", self._first),
                Route("/{run}/{page}", self._page),
                Route("/{run}/do/{action}", self._act, methods=["POST"]),
            ],
            middleware=[Middleware(GZipMiddleware, minimum_size=1024, compresslevel=5)],
        )

    async def _first(self, request: Request) -> Response:
        runs = self._watch.runs
        key = request.path_params.get("run", next(iter(runs)))
        page = "federations" if len(runs) > 1 and "run" not in request.path_params else "now"
        return RedirectResponse(f"{PATH}/{quote(key, safe='')}/{page}", 303)

    async def _file(self, request: Request) -> Response:
        name = request.path_params["name"]
        body = self._static.get(name)
        if body is None:
            return PlainTextResponse("not found\n", 404)
        kind = _TYPES.get(Path(name).suffix, "application/octet-stream")
        return Response(body, media_type=kind, headers={"Cache-Control": "no-cache"})

    async def _events(self, request: Request) -> Response:
        if not self._access.may_look(request):
            return PlainTextResponse("expected the operator's session\n", 403)
        if self._streams >= _STREAMS:
            return PlainTextResponse("too many viewers\n", 503)

        async def stream() -> Any:
            self._streams += 1
            try:
                async for line in self._watch.changes():
                    yield line
            finally:
                self._streams -= 1

        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingResponse(stream(), media_type="text/event-stream", headers=headers)

    async def _page(self, request: Request) -> Response:
        if not self._access.may_look(request):
            return self._to_sign_in(request)
        page = PAGES.get(request.path_params["page"])
        runs = await self._watch.snapshots()
        run = runs.get(request.path_params["run"])
        if page is None or run is None:
            return self._wrong(request, "There is no such page", 404)
        name, query = request.path_params["page"], request.query_params
        details = None
        if page.details is not None:
            watched = self._watch.runs[run.key]
            details = await asyncio.to_thread(page.details, watched, run, query)
        trail = None
        if page.shows_trail and self._access.form_token(request):
            trail = await asyncio.to_thread(self._access.trail.latest)
        asked = PageRequest(
            run=run, query=query, now_s=time.time(), runs=runs, details=details, trail=trail
        )
        return self._shown(
            request, name, run=run, runs=runs, title=page.title, view=page.view(asked)
        )

    async def _act(self, request: Request) -> Response:
        form = await read_form(request)
        name, key = request.path_params["action"], request.path_params["run"]
        action, watched = ACTIONS.get(name), self._watch.runs.get(key)
        if action is None or watched is None:
            return self._wrong(request, "There is no such action", 404)
        refused = self._access.why_not(request, form.get("form_token", ""))
        if refused:
            outcome, failed = ActionResult(text=refused), True
        else:
            outcome, failed = await self._do(action, watched, form)
        target = "/".join(filter(None, (str(watched.folder), cut(form.get("device", "")))))
        said = f"{'failed' if failed else 'done'}: {outcome.text}"
        await asyncio.to_thread(
            self._access.note, request, name, target, said, refused=bool(refused)
        )
        self._watch.forget()
        runs = await self._watch.snapshots()
        part = request.headers.get("hx-request") == "true"
        answer = self._shown(
            request,
            "outcome_text" if part else "outcome",
            status=403 if refused else 200,
            run=runs[key],
            runs=runs,
            title="Operate",
            action=name,
            outcome=outcome,
            failed=failed,
        )
        answer.headers["HX-Trigger"] = "changed"  # who is a member stands in no run folder
        return answer

    async def _do(
        self, action: Action, watched: WatchedRun, form: Mapping[str, str]
    ) -> tuple[ActionResult, bool]:
        """Act in a thread, one at a time; what came of it, and whether it failed."""
        phones = self.phones[1] if self.phones[0] == watched.key else ""
        async with self._acting:
            try:
                return await asyncio.to_thread(action, watched, form, phones), False
            except (ProtofleetError, OSError, sqlite3.Error) as error:
                return ActionResult(text=str(error)), True

    def _shown(
        self, request: Request, template: str, *, status: int = 200, **shown: Any
    ) -> Response:
        """A whole page, or the part of it that changes where only that is asked for."""
        part = request.headers.get("hx-request") == "true"
        query = f"?{request.url.query}" if request.url.query else ""
        text = self._templates.get_template(f"{template}.html.jinja2").render(
            layout="part.html.jinja2" if part else "base.html.jinja2",
            here=f"{PATH}{request.scope['path'].removeprefix(PATH)}{query}",
            name=template,
            path=PATH,
            pages=PAGES,
            now_s=time.time(),
            form_token=self._access.form_token(request),
            **shown,
        )
        headers = {"Cache-Control": "no-store", "Vary": "HX-Request"}
        return HTMLResponse(text, status, headers)

    def _wrong(self, request: Request, text: str, status: int) -> Response:
        return self._shown(
            request, "wrong", status=status, title=text, text=text, run=None, runs={}
        )

    def _to_sign_in(self, request: Request) -> Response:
        if request.headers.get("hx-request") == "true":
            return PlainTextResponse("expected the operator's session\n", 403)
        return RedirectResponse(f"{PATH}/sign-in", 303)

    async def _sign_in(self, request: Request) -> Response:
        wrong = ""
        if request.method == "POST":
            form = await read_form(request)
            session = (
                self._access.sign_in(form.get("token", "")) if from_own_page(request) else None
            )
            said = "done" if session else "failed: another token"
            await asyncio.to_thread(
                self._access.note, request, "sign-in", "", said, refused=session is None
            )
            if session is not None:
                answer = RedirectResponse(PATH, 303)
                answer.set_cookie(
                    COOKIE,
                    session,
                    path=PATH,
                    httponly=True,
                    samesite="strict",
                    secure=request.url.scheme == "https",
                )
                return answer
            wrong = "This is not the operator's token of this hub."
        status = 403 if wrong else 200
        return self._shown(
            request, "sign_in", status=status, title="Sign in", wrong=wrong, run=None, runs={}
        )

    async def _sign_out(self, request: Request) -> Response:
        form = await read_form(request)
        if not self._access.why_not(request, form.get("form_token", "")):
            self._access.note(request, "sign-out", "", "done", refused=False)
            self._access.sign_out(request)
        return RedirectResponse(f"{PATH}/sign-in", 303)


async def read_form(request: Request) -> Mapping[str, str]:
    """The fields of a form, the first of each name; nothing of one that is too long or cut off."""
    body = b""
    try:
        async for piece in request.stream():
            body += piece
            if len(body) > _FORM_BYTES:
                return {}
        found = parse_qs(body.decode("ascii"), max_num_fields=32, keep_blank_values=True)
    except (ValueError, ClientDisconnect):
        return {}
    return {name: values[0] for name, values in found.items()}

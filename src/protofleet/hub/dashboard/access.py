"""Who may look and who may act: the operator's token and sessions, each act and refusal noted.

The token lies in a file of mode 0600. A browser sends it once and gets a session in its place, as a
cookie that scripts cannot read and that other sites' pages do not send. A form must come from a
page of this hub (``Origin``) and bring the session's own form token.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from pathlib import Path

from starlette.requests import Request

from protofleet.errors import InputError
from protofleet.hub.dashboard.trail import OUTCOME_CHARS, AuditRecord, Trail, cut
from protofleet.hub.names import is_same_origin
from protofleet.private_files import check_secret_file, opener

TOKEN_FILE = "operator-token"  # noqa: S105 - where it lies
COOKIE = "protofleet_operator"
PATH = "/dashboard"
_SESSIONS = 256
_LASTS_S = 12 * 3600


class Access:
    """Knows the operator's sessions.

    Args:
        token_file: made if there is none, beside the audit trail.
        to_look: whether looking needs the token, too.

    Attributes:
        token: the operator's.
        trail: of what was done and refused.

    Raises:
        InputError: the file cannot be made, or others may read it; or the trail is a link.
    """

    def __init__(self, token_file: Path, *, to_look: bool) -> None:
        self.token = _token(token_file)
        self.to_look = to_look
        self.trail = Trail(token_file.parent)
        self._sessions: dict[str, tuple[str, float]] = {}

    def sign_in(self, token: str) -> str | None:
        """A new session for who knows the token; None: that is another one."""
        if not secrets.compare_digest(token.strip().encode(), self.token.encode()):
            return None
        while len(self._sessions) >= _SESSIONS:
            del self._sessions[next(iter(self._sessions))]
        session = secrets.token_urlsafe(32)
        self._sessions[session] = (secrets.token_urlsafe(32), time.monotonic())
        return session

    def sign_out(self, request: Request) -> None:
        """End the session of a request."""
        self._sessions.pop(request.cookies.get(COOKIE, ""), None)

    def form_token(self, request: Request) -> str:
        """What forms of the request's session have to bring; empty: it has no session."""
        session = request.cookies.get(COOKIE, "")
        found, since = self._sessions.get(session, ("", 0.0))
        if found and time.monotonic() > since + _LASTS_S:
            del self._sessions[session]
            return ""
        return found

    def may_look(self, request: Request) -> bool:
        """Whether the request may be answered with a page."""
        return not self.to_look or bool(self.form_token(request))

    def why_not(self, request: Request, form_token: str) -> str:
        """Why a form is refused; empty: it is not."""
        expected = self.form_token(request)
        if not from_own_page(request):
            return "expected a form of a page of this hub"
        if not expected:
            return "expected the operator's session: sign in first"
        if not secrets.compare_digest(form_token.encode(), expected.encode()):
            return "expected the form of this session: load the page again"
        return ""

    def note(
        self, request: Request, action: str, target: str, outcome: str, *, refused: bool
    ) -> None:
        """Write what was done into the audit trail; on the disk when this returns.

        Args:
            request: whose.
            action: as of ``AuditRecord``.
            target: as there; what a stranger sent is cut short.
            outcome: as there; cut short here.
            refused: whether nothing was done because of who asked: counted, and seldom written.

        Raises:
            OSError: the disk takes no writes.
        """
        session = request.cookies.get(COOKIE, "")
        record = AuditRecord(
            time_s=round(time.time(), 3),
            address="" if request.client is None else cut(request.client.host),
            session=hashlib.sha256(session.encode()).hexdigest()[:8] if session else "",
            action=action,
            target=target,
            outcome=cut(outcome, OUTCOME_CHARS),
        )
        (self.trail.refuse if refused else self.trail.act)(record)


def from_own_page(request: Request) -> bool:
    """Whether a page of this hub has sent the request, as the browser says."""
    origin = request.headers.get("origin", "")
    return bool(origin) and is_same_origin(origin, request.headers.get("host", ""))


def _token(path: Path) -> str:
    try:
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with open(path, "x", opener=opener) as file:
                file.write(secrets.token_urlsafe(32) + "\n")
        check_secret_file(path, "operator's token")
        found = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"operator's token '{path}': {error}") from error
    if len(found) < 32:
        raise InputError(
            f"operator's token '{path}': expected at least 32 characters, got {len(found)}; remove "
            "the file, and the next start makes another"
        )
    return found

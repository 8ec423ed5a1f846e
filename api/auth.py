"""Who may do what?

Two bearer tokens, user and operator, asked for on loopback too; Host and Origin are checked so that no web page can
reach the API through its visitor's browser. It must not know routes.
"""

import hmac
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from fastapi import Request
from fastapi.responses import Response

from api.problems import Problem, answer

OPEN_PATHS = frozenset({"/healthz", "/readyz"})


class Role(StrEnum):
    """An operator may do all that a user may, and scale jobs."""

    USER = "user"
    OPERATOR = "operator"


@dataclass(frozen=True, slots=True)
class Doors:
    """The tokens, and the names under which the API may be called."""

    tokens: Mapping[Role, str]
    hosts: frozenset[str]

    def role_of(self, header: str | None) -> Role | None:
        """Return whose token the Authorization header carries."""
        scheme, _, token = (header or "").partition(" ")
        if scheme.lower() != "bearer":
            return None
        # Every token is compared, in constant time.
        found = [
            role for role, known in self.tokens.items() if hmac.compare_digest(known.encode(), token.strip().encode())
        ]
        return found[0] if found else None


Next = Callable[[Request], Awaitable[Response]]


def guard(doors: Doors) -> Callable[[Request, Next], Awaitable[Response]]:
    """Return the middleware that lets nobody in without a token, by another name, or from another site."""

    async def check(request: Request, call_next: Next) -> Response:
        host = request.headers.get("host", "")
        if host not in doors.hosts:
            return answer(403, f"Host is {host!r}; call the API as one of: {', '.join(sorted(doors.hosts))}")
        origin = request.headers.get("origin")
        if origin is not None and origin.partition("://")[2] not in doors.hosts:
            return answer(403, f"Origin is {origin!r}; only the API's own pages may call it")
        if request.url.path in OPEN_PATHS:
            return await call_next(request)
        role = doors.role_of(request.headers.get("authorization"))
        if role is None:
            return answer(401, "send 'Authorization: Bearer TOKEN' with the user's or the operator's token")
        wrong = _wrong_media(request)
        if wrong is not None:
            return answer(415, wrong)
        request.state.role = role
        return await call_next(request)

    return check


def _wrong_media(request: Request) -> str | None:
    if request.method not in ("POST", "PUT", "PATCH"):
        return None
    media = request.headers.get("content-type", "").partition(";")[0].strip()
    wanted = "application/zip" if request.url.path.startswith("/v1/bundles/") else "application/json"
    has_body = request.headers.get("content-length", "0") != "0" or "transfer-encoding" in request.headers
    return f"Content-Type is {media!r}, it must be {wanted}" if has_body and media != wanted else None


def operators_only(request: Request) -> None:
    """Dependency: 403 for anybody but an operator."""
    if request.state.role is not Role.OPERATOR:
        raise Problem(403, "this needs the operator's token; you sent the user's")

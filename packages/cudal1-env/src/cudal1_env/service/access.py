"""Access control in front of every route: tokens, and limits on the body of a request."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
from pathlib import Path

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cudal1_env.errors import SettingsError
from cudal1_env.wire import Refusal

_MIN_TOKEN_CHARS = 16
_BODY_S = 30.0
"""How long a client may take to send a body."""


def read_tokens(path: Path | None, host: str) -> tuple[str, ...]:
    """Return the tokens of a file, one per line.

    Args:
        path: The file; None is allowed only for a service on loopback.
        host: Address on which the service listens.

    Raises:
        SettingsError: There is no file for an address other than loopback, or the file is unreadable or has no valid
            tokens.
    """
    if path is None:
        if not is_loopback(host):
            raise SettingsError(
                f"refusing to listen on {host} without a token: anyone who reaches it could run programs; name a "
                "file with --token-file (a line such as `openssl rand -hex 32` prints), or listen on 127.0.0.1"
            )
        return ()
    try:
        tokens = tuple(line.strip() for line in path.read_text(encoding="ascii").splitlines() if line.strip())
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not ASCII"
        raise SettingsError(f"cannot read the token file {path}: {reason}; name a file with a token a line") from error
    if not tokens or any(len(token) < _MIN_TOKEN_CHARS for token in tokens):
        raise SettingsError(f"{path} must hold tokens of at least {_MIN_TOKEN_CHARS} characters, one a line")
    return tokens


def is_loopback(host: str) -> bool:
    """Return whether an address can be reached from this machine only.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0"), is_loopback("gpu7")
    (True, True, False, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class Access:
    """ASGI middleware that checks the token, reads the body up to a limit, and sets the request's owner.

    `request.state.owner` is a hash of the token, empty without one.

    Args:
        app: The application behind it.
        tokens: Accepted tokens; without any, requests are accepted if their host is loopback.
        max_body_bytes: Maximum size of a body.
    """

    def __init__(self, app: ASGIApp, *, tokens: tuple[str, ...], max_body_bytes: int) -> None:
        self._app = app
        self._owners = [hashlib.sha256(token.encode()).hexdigest() for token in tokens]
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Reject a request, or pass it on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        refusal = self._refusal(headers, scope["method"])
        body = await self._body(receive) if refusal is None else refusal
        if isinstance(body, Response):
            body.headers["Connection"] = "close"  # the request's body was not read
            await body(scope, receive, send)
            return
        pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def again() -> Message:
            return pending.pop() if pending else await receive()

        scope.setdefault("state", {})["owner"] = self._owner(headers) or ""
        await self._app(scope, again, send)

    def _owner(self, headers: Headers) -> str | None:
        kind, _, token = headers.get("authorization", "").partition(" ")
        given = hashlib.sha256(token.strip().encode()).hexdigest()
        # Every token is compared, in constant time, even after a match.
        same = [owner for owner in self._owners if hmac.compare_digest(owner, given)]
        return same[0] if same and kind.lower() == "bearer" else None

    def _refusal(self, headers: Headers, method: str) -> Response | None:
        if self._owners:
            if self._owner(headers) is None:
                return refuse(
                    401, "unauthorized", "send a token of the service's token file: Authorization: Bearer ..."
                )
        elif not is_loopback(headers.get("host", "").rpartition(":")[0] or headers.get("host", "")):
            return refuse(
                403, "forbidden", "without a token the service answers requests to 127.0.0.1 or localhost only"
            )
        # A browser sends other content types to other sites without a preflight request.
        if method == "POST" and headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            return refuse(415, "not_json", "send JSON, with Content-Type: application/json")
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > self._max_body_bytes:
            return self._too_large()
        return None

    async def _body(self, receive: Receive) -> bytes | Response:
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(_BODY_S):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return refuse(400, "cut_off", "the connection ended before the body did")
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    if size > self._max_body_bytes:
                        return self._too_large()
                    if not message.get("more_body", False):
                        return b"".join(parts)
        except TimeoutError:
            return refuse(408, "slow", f"send the body within {_BODY_S:.0f} s")

    def _too_large(self) -> Response:
        return refuse(
            413, "too_large", f"send at most {self._max_body_bytes} bytes in a request; send fewer jobs at a time"
        )


def refuse(status: int, error: str, message: str, **headers: str) -> Response:
    """Return the reply to a rejected request."""
    body = Refusal(error=error, message=message).model_dump_json(ensure_ascii=True)
    return Response(body, status, media_type="application/json", headers={**headers})

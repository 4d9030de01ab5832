"""Who may ask for what. Every request passes here before anything is looked up.

- Loopback: only names of this machine are answered, so that a stranger's domain that is made to point here
  (DNS rebinding) reaches nothing.
- Elsewhere, or with `--token`: a token, once as ?token=…, then as a cookie.
- A POST needs the page's own token, and must come from a page of this server.
"""

import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK = ("127.0.0.1", "localhost", "::1")
LARGEST_BODY, MOST_FIELDS = 1_000_000, 500
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


@dataclass(frozen=True)
class Keys:
    """`token`: what visitors must know; None if everybody on this machine may look."""

    token: str | None
    page: str = field(default_factory=lambda: secrets.token_urlsafe(32))  # proves that a POST is our page's


class Guard:
    def __init__(self, app: ASGIApp, keys: Keys, loopback: bool) -> None:
        self.app, self.keys, self.loopback = app, keys, loopback

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":  # no websockets
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        headers = Headers(scope=scope)
        refused = self._stranger(scope, headers)
        if refused is None and scope["method"] == "POST":
            body = await _body(receive)
            refused = self._forged(scope, headers, body)
        await (refused or self.app)(scope, receive, guarded)

    def _stranger(self, scope: Scope, headers: Headers) -> Response | None:
        """What a visitor is told who may not look; None if they may."""
        if scope["method"] not in ("GET", "HEAD", "POST"):
            return _no(405, "expected GET or POST")
        if self.loopback and _host(headers) not in LOOPBACK:
            return _no(421, f"this console answers to {', '.join(LOOPBACK)} only")
        if self.keys.token is None:
            return None
        query = dict(parse_qsl(scope["query_string"].decode("latin-1")))
        cookie = f"pagefl-{scope['server'][1]}" if scope.get("server") else "pagefl"
        if _same(query.pop("token", ""), self.keys.token):
            rest = f"?{urlencode(query)}" if query else ""
            entered = RedirectResponse(scope["root_path"] + scope["path"] + rest, 303)
            entered.set_cookie(cookie, self.keys.token, httponly=True, samesite="strict", path="/")
            return entered
        if _same(_cookies(headers).get(cookie, ""), self.keys.token):
            return None
        return _no(
            401, "this console needs its token: open it with ?token=…, which its terminal tells how to find"
        )

    def _forged(self, scope: Scope, headers: Headers, body: bytes | None) -> Response | None:
        """What a POST is told that is not our page's; otherwise None, and its fields are in the scope."""
        if body is None:
            return _no(413, f"expected at most {LARGEST_BODY} bytes")
        origin, site = headers.get("origin"), headers.get("sec-fetch-site", "same-origin")
        if site != "same-origin" or (origin is not None and urlsplit(origin).netloc != headers.get("host")):
            return _no(403, "this request comes from another site's page")
        try:
            fields = dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=MOST_FIELDS))
        except ValueError:
            return _no(400, "expected the fields of a form")
        if not _same(fields.pop("csrf", headers.get("x-csrf", "")), self.keys.page):
            return _no(403, "this request lacks the page's token; load the page again")
        scope["fields"] = fields
        return None


def _host(headers: Headers) -> str | None:
    try:
        return urlsplit(f"//{headers.get('host', '')}").hostname
    except ValueError:
        return None


def _cookies(headers: Headers) -> Mapping[str, str]:
    parts = (part.partition("=") for part in headers.get("cookie", "").split(";"))
    return {name.strip(): value.strip() for name, _, value in parts}


def _same(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode(errors="replace"), expected.encode())


def _no(status: int, sentence: str) -> Response:
    return PlainTextResponse(sentence + "\n", status)


async def _body(receive: Receive) -> bytes | None:
    """The whole body; None if it is too long."""
    body = b""
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        body += bytes(message.get("body", b""))
        if len(body) > LARGEST_BODY:
            return None
        if not message.get("more_body"):
            return body

"""Who may ask, decided on the bytes of the request before anything else looks at it.

Any page that a browser has open can send requests to this machine, and a name can be made to point here. So Host and
Origin must be this server's own, byte for byte and port included, each at most once; data is for who has the token,
which stands in the fragment of the address (no server and no log ever sees that) and comes back in a header (no other
page can send it). Only GET, no body, no ranges, short addresses.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

TOKEN = b"x-tapeless-token"
LONGEST_QUERY, LONGEST_PATH, MOST_HEADERS, LONGEST_HEADERS = 1000, 200, 60, 8000
DATA = b"/api/"
HEADERS = (
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
        b"trusted-types 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)


def guarded(app: App, token: str, port: int) -> App:
    hosts = {f"{name}:{port}".encode() for name in ("127.0.0.1", "localhost")}
    secret = token.encode()

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            return
        refused = refusal(scope, hosts, secret)

        async def safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *HEADERS]
            await send(message)

        if refused is None:
            await app(scope, receive, safely)
        else:
            status, said = refused
            kind = (b"content-type", b"text/plain; charset=utf-8")
            await safely({"type": "http.response.start", "status": status, "headers": [kind]})
            await send({"type": "http.response.body", "body": said})

    return answer


def refusal(scope: Scope, hosts: set[bytes], secret: bytes) -> tuple[int, bytes] | None:
    """The status and the word for a request that is not answered; None for one that is."""
    headers: dict[bytes, list[bytes]] = {}
    for name, value in scope["headers"]:
        headers.setdefault(name, []).append(value)
    host, origin = headers.get(b"host", []), headers.get(b"origin", [])
    if len(host) != 1 or host[0] not in hosts:
        return 421, b"This address is not for this host.\n"
    if len(origin) > 1 or (origin and origin[0] != b"http://" + host[0]):
        return 403, b"Another page asked for this.\n"
    if any(site not in (b"same-origin", b"none") for site in headers.get(b"sec-fetch-site", [])):
        return 403, b"Another page asked for this.\n"
    if scope["method"] != "GET":
        return 405, b"Nothing here is changed: GET alone.\n"
    if sum(len(name) + len(value) for name, value in scope["headers"]) > LONGEST_HEADERS:
        return 431, b"Too long.\n"
    if len(scope["headers"]) > MOST_HEADERS or b"transfer-encoding" in headers or b"upgrade" in headers:
        return 400, b"A plain request, please.\n"
    if any(length.strip() != b"0" for length in headers.get(b"content-length", [])):
        return 400, b"A GET has no body.\n"
    if b"range" in headers:
        return 416, b"All of it or nothing.\n"
    path = scope.get("raw_path", b"")
    if len(scope["query_string"]) > LONGEST_QUERY or len(path) > LONGEST_PATH:
        return 414, b"What is asked for is too long: ask for less.\n"
    if path != scope["path"].encode() or not path.isascii() or b"%" in path or b"//" in path or b".." in path:
        return 404, b"Not found.\n"
    if path.startswith(DATA):
        tokens = headers.get(TOKEN, [])
        if len(tokens) != 1 or not hmac.compare_digest(tokens[0], secret):
            return 403, b"The token is missing or wrong: open the address that the command printed.\n"
    return None

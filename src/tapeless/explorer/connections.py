"""Connections of the explorer: each has a few seconds for its request, and holds up nobody until that is whole.

uvicorn has no clock for a request that never ends, and counts its connection against all others. Here a connection has
`PATIENCE` seconds to send a whole request, and as long after each answer; dripping bytes does not prolong them. Of more
than `MOST_WAITING` that wait, the one that has waited longest is ended, so that a newcomer is always heard. An answer
that its reader takes nothing of is ended, too.
"""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn import Config, Server
from uvicorn.protocols.http.h11_impl import H11Protocol

from tapeless.explorer.guard import HEADERS, App

PATIENCE = 10.0  # seconds for a whole request; a browser sends its own at once
STUCK = 20.0  # seconds in which a reader must take something of an answer
BACKLOG = 128  # connections that are taken at once
MOST_WAITING = 160  # more than those, so that none is ended before it was read from
MOST_AT_ONCE = 64  # requests in hand: more than may wait for a turn or a stream
LATE = b"The request did not come to an end.\n"
TEXT = (b"content-type", b"text/plain; charset=utf-8")
BUSY = b"Too much is asked for at once: ask again in a moment.\n"


def make_server(app: App, log_level: str = "warning") -> Server:
    waiting: dict[H11Protocol, None] = {}  # those whose request is not whole, the longest waiting one first

    class Connection(_Connection):
        others = waiting

    config = Config(
        at_most(app, MOST_AT_ONCE),
        http=Connection,
        ws="none",
        lifespan="off",
        log_level=log_level,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        h11_max_incomplete_event_size=16_384,
        timeout_graceful_shutdown=1,
    )
    return Server(config)


def at_most(app: App, most: int) -> App:
    """So many requests are in hand; one more is refused with a sentence."""
    in_hand = 0

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        nonlocal in_hand
        if in_hand >= most:
            head = [TEXT, (b"retry-after", b"1"), *HEADERS]
            await send({"type": "http.response.start", "status": 503, "headers": head})
            await send({"type": "http.response.body", "body": BUSY})
            return
        in_hand += 1
        try:
            await app(scope, receive, send)
        except asyncio.CancelledError:  # the server ends, and with it whoever waited: nothing to be told of
            return
        finally:
            in_hand -= 1

    return answer


class _Connection(H11Protocol):
    others: dict[H11Protocol, None]
    _clock: asyncio.TimerHandle | None = None
    _stuck: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._look()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        self._heed()
        super().on_response_complete()
        self._look()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._heed()
        if self._stuck is not None:
            self._stuck.cancel()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """The command was ended: so are streams, which have no end of their own, and whoever waits for numbers."""
        super().shutdown()
        self.transport.close()

    def _look(self) -> None:
        """Start the clock where a request is waited for, and stop it where one is whole."""
        if self.transport.is_closing() or self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._heed()
        elif self._clock is None:
            self._clock = self.loop.call_later(PATIENCE, self._end)
            self.others[self] = None
            if len(self.others) > MOST_WAITING:
                next(iter(self.others))._end()  # type: ignore[attr-defined]

    def _heed(self) -> None:
        self.others.pop(self, None)
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None

    def _end(self) -> None:
        """Say that it took too long, if there is a question that has no answer yet."""
        said = self.conn.our_state is h11.IDLE and self.conn.trailing_data[0]
        self._heed()
        if not self.transport.is_closing():
            if said:
                head = [TEXT, (b"content-length", b"%d" % len(LATE)), (b"connection", b"close"), *HEADERS]
                lines = [b"HTTP/1.1 408 Request Timeout", *(b"%s: %s" % each for each in head), b"", LATE]
                self.transport.write(b"\r\n".join(lines))
            self.transport.close()
            self._watch()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._watch()

    def _watch(self) -> None:
        """Whether its reader takes what is still to be sent."""
        left = self.transport.get_write_buffer_size()
        if self._stuck is not None:
            self._stuck.cancel()
        self._stuck = self.loop.call_later(STUCK, self._look_again, left) if left else None

    def _look_again(self, left: int) -> None:
        if self.transport.get_write_buffer_size() < left:
            self._watch()
        else:
            self.transport.abort()

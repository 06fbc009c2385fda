"""Who may wait for what: computations one after the other, and streams of news, of each so many and no more."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse

from tapeless.explorer.source import RunSource

MOST_TURNS = 12  # that wait for one kind of computation
MOST_STREAMS = 16
LOOK = 0.5  # seconds between two looks at the runs
LONGEST_STREAM = 600.0  # seconds, after which a page asks anew: so the place of one that is no more comes free
Endpoint = Callable[[Request], Response]


class ComputationQueue:
    """Computations one at a time: models are used by one, and kernels are compiled by one. Who waits takes no thread,
    and who has left meanwhile is passed over."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._waiting = 0

    def __call__(self, answer: Endpoint) -> Callable[[Request], Awaitable[Response]]:
        async def in_turn(request: Request) -> Response:
            if self._waiting >= MOST_TURNS:
                return PlainTextResponse("Too much is being computed already: ask again in a moment.\n", 503)
            self._waiting += 1
            try:
                async with self._turn:
                    if await request.is_disconnected():
                        return Response(status_code=204)
                    return await run_in_threadpool(answer, request)
            finally:
                self._waiting -= 1

        return in_turn


class Streams:
    """Server-sent events: the state of each run, each time it is another one. A page then asks for what is new."""

    def __init__(self, sources: Sequence[RunSource]) -> None:
        self._sources = sources
        self._open = 0

    def answer(self) -> Response:
        return _Live(self)

    async def serve(self, scope: Any, receive: Any, send: Any) -> None:
        """Between the look at the places and the taking of one nothing else runs."""
        if self._open >= MOST_STREAMS:
            await PlainTextResponse(f"{MOST_STREAMS} pages look already: close one.\n", 503)(scope, receive, send)
            return
        self._open += 1
        try:
            await StreamingResponse(self._events(), media_type="text/event-stream")(scope, receive, send)
        finally:
            self._open -= 1

    async def _events(self) -> AsyncIterator[str]:
        before: list[Any] = [None] * len(self._sources)
        loop = asyncio.get_running_loop()
        end = loop.time() + LONGEST_STREAM
        while loop.time() < end:
            for number, source in enumerate(self._sources):
                state = await asyncio.to_thread(source.state)
                if state != before[number]:
                    before[number] = state
                    yield f"data: {json.dumps({'run': number, **state})}\n\n"
            yield ": still here\n\n"
            await asyncio.sleep(LOOK)


class _Live(Response):
    def __init__(self, streams: Streams) -> None:
        super().__init__()
        self._streams = streams

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._streams.serve(scope, receive, send)

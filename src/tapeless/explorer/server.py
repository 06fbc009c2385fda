"""The explorer's server: a handful of pages and what they ask for, on this machine alone.

Runs are known by their number in the list that was given at the start, pages by an exact table of names: no path of a
request ever reaches the file system.
"""

from __future__ import annotations

import json
import secrets
import socket
from collections.abc import Callable, Iterable
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from tapeless.backends.backend import BACKENDS
from tapeless.errors import TapelessError, unknown
from tapeless.explorer.attention import Attending
from tapeless.explorer.batch import batch_of
from tapeless.explorer.connections import make_server
from tapeless.explorer.guard import App, guarded
from tapeless.explorer.memory import Switches, memory
from tapeless.explorer.pupil import story as told_by
from tapeless.explorer.school import MOST_MOMENTS, School
from tapeless.explorer.source import RunSource, described, heat
from tapeless.explorer.stepping import of_calls, of_one
from tapeless.explorer.tracing import Tracer
from tapeless.explorer.turns import ComputationQueue, Streams
from tapeless.program.precision import PRECISIONS

PORT = 8437  # where it is free: what a page has kept in the browser is kept by address
TYPES = {"html": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
MOST_ROWS_BYTES = 4 << 20  # of a record, sent at once
MOST_BINS = 4096
MAXIMUM = 1 << 31
MOST_SIZE = 1 << 24  # of a batch or a sequence


class Query:
    """What an address asks for besides its path, each name once and known, each number one."""

    def __init__(self, request: Request, *names: str) -> None:
        items = request.query_params.multi_items()
        given = dict(items)
        if len(given) != len(items) or not set(given) <= set(names):
            raise TapelessError(f"this address takes {', '.join(names) or 'nothing'}, each at most once.")
        self._given = given

    def text(self, name: str, default: str = "") -> str:
        return self._given.get(name, default)

    def number(self, name: str, default: int, least: int = 0, most: int = MAXIMUM) -> int:
        given = self._given.get(name)
        if given is None:
            return default
        if not (given.isascii() and given.isdigit() and len(given) < 12 and least <= int(given) <= most):
            raise TapelessError(f"{name} must be a whole number from {least} to {most:,}, not {given[:40]!r}.")
        return int(given)

    def one_of(self, name: str, known: Iterable[str]) -> str | None:
        given = self._given.get(name)
        if given is not None and given not in known:
            raise unknown(name, given, known)
        return given

    def optional(self, name: str) -> int | None:
        return self.number(name, 0) if name in self._given else None

    def count(self, name: str) -> int | None:
        return self.number(name, 1, 1, MOST_SIZE) if name in self._given else None


def encoded(said: Any) -> bytes:
    """As JSON, which knows no NaN and no infinity."""
    try:
        return json.dumps(said, allow_nan=False, separators=(",", ":")).encode()
    except ValueError:
        raise TapelessError(
            "what comes out is NaN or infinite: the run had diverged there, or its weights are damaged."
        ) from None


class EncodedResponse(JSONResponse):
    def render(self, content: Any) -> bytes:
        return encoded(content)


def make_app(folders: list[Path], token: str, port: int, most: int | None = None) -> App:
    """`most`: bytes of each run's record that are shown."""
    sources = [RunSource(folder, most) for folder in folders]
    school = School(folders)
    tracers = [Tracer(folder) for folder in folders]
    attending = [Attending(folder) for folder in folders]
    streams, computing, apart = Streams(sources), ComputationQueue(), ComputationQueue()

    def number_of(request: Request) -> int:
        number: int = request.path_params["run"]
        if not 0 <= number < len(sources):
            raise TapelessError(f"there is no run {number}: there are {len(sources)}.")
        return number

    def run_of(request: Request) -> RunSource:
        return sources[number_of(request)]

    def runs(request: Request) -> Response:
        Query(request)
        return EncodedResponse([source.about() for source in sources])

    def curves(request: Request) -> Response:
        query = Query(request, "generation", "cursor")
        return EncodedResponse(run_of(request).curves(query.number("generation", 0), query.number("cursor", 0)))

    def doctor(request: Request) -> Response:
        Query(request)
        return EncodedResponse(_or_why_not(run_of(request).doctor))

    def record(request: Request) -> Response:
        Query(request)
        source = run_of(request)

        def listed() -> dict[str, Any]:
            generation, found = source.record()
            return described(found, generation, source.tensors())

        return EncodedResponse(_or_why_not(listed))

    def heatmap(request: Request) -> Response:
        query = Query(request, "what", "bins", "from", "to")
        generation, found = run_of(request).record()
        bins, last = query.number("bins", 512, 1, MOST_BINS), query.optional("to")
        names, table = heat(found, query.text("what", "flow"), bins, query.number("from", 0), last)
        said = encoded({"generation": generation, "lines": names, "bins": len(table)})
        return _binary(said, table.astype("<f8").tobytes())

    def rows(request: Request) -> Response:
        query = Query(request, "from", "to")
        generation, found = run_of(request).record()
        start, stop = query.number("from", 0), query.number("to", 0)
        most = max(1, MOST_ROWS_BYTES // (4 * found.header.width))
        chosen = found.rows[start : min(stop, start + most)]
        said = encoded({"generation": generation, "from": start, "rows": len(chosen), "width": found.header.width})
        return _binary(said, np.ascontiguousarray(chosen, "<f4").tobytes())

    def plan(request: Request) -> Response:
        query = Query(request, "batch", "time", "recompute", "precision", "backend")
        recompute = query.one_of("recompute", ("yes", "no"))
        wanted = Switches(
            query.count("batch"),
            query.count("time"),
            None if recompute is None else recompute == "yes",
            query.one_of("precision", PRECISIONS),
            query.one_of("backend", BACKENDS),
        )
        folder = run_of(request).folder
        return EncodedResponse(_or_why_not(lambda: memory(folder, wanted)))

    def story(request: Request) -> Response:
        asked = Query(request, "ask").text("ask")
        folder = run_of(request).folder
        return EncodedResponse(_or_why_not(lambda: told_by(folder, asked)))

    def batch(request: Request) -> Response:
        folder, step = run_of(request).folder, Query(request, "step").number("step", 1, 1)
        return EncodedResponse(_or_why_not(lambda: batch_of(folder, step)))

    def lesson(request: Request) -> Response:
        query = Query(request, "at", "ask")
        at, asked = query.number("at", 0, 0, MOST_MOMENTS), query.text("ask")
        return EncodedResponse(_or_why_not(lambda: school.lesson(at, asked)))

    def planted(request: Request) -> Response:
        number = Query(request, "number").number("number", 0, 0, MOST_MOMENTS)
        return EncodedResponse(_or_why_not(lambda: school.planted(number)))

    def taught(ask: Callable[[], dict[str, Any]]) -> Callable[[Request], Response]:
        def answer(request: Request) -> Response:
            Query(request)
            return EncodedResponse(_or_why_not(ask))

        return answer

    def trace(request: Request) -> Response:
        query = Query(request, "step")
        tracer, step = tracers[number_of(request)], query.optional("step")
        return EncodedResponse(_or_why_not(lambda: tracer.overview(step)))

    def element(request: Request) -> Response:
        query = Query(request, "step", "weight", "row", "column")
        return EncodedResponse(tracers[number_of(request)].element(*_element(query)))

    def digits(request: Request) -> Response:
        query = Query(request, "step", "weight", "row", "column")
        return EncodedResponse(tracers[number_of(request)].digits(*_element(query)))

    def picture(request: Request) -> Response:
        query = Query(request, "step", "weight", "what")
        what = query.one_of("what", ("update", "gradient")) or "update"
        tracer = tracers[number_of(request)]
        head, values = tracer.picture(query.optional("step"), query.number("weight", 0), what)
        return _binary(encoded(head), np.ascontiguousarray(values, "<f8").tobytes())

    def examples(request: Request) -> Response:
        Query(request)
        return EncodedResponse(_or_why_not(attending[number_of(request)].examples))

    def attention(request: Request) -> Response:
        query = Query(request, "step", "example", "text")
        asked = query.number("step", 0), query.number("example", 0), query.text("text")
        head, values = attending[number_of(request)].maps(*asked)
        return _binary(encoded(head), np.ascontiguousarray(values, "<f4").tobytes())

    def calls(request: Request) -> Response:
        query = Query(request, "near", "what")
        tracer, near = tracers[number_of(request)], query.number("near", 0)
        what = query.one_of("what", ("error", "time")) or "error"
        return EncodedResponse(_or_why_not(lambda: tracer.near(near, lambda traced: of_calls(traced, what))))

    def call(request: Request) -> Response:
        query = Query(request, "near", "call")
        source, tracer = run_of(request), tracers[number_of(request)]
        near, number = query.number("near", 0), query.number("call", 0)

        def answer() -> dict[str, Any]:
            kept = source.kept_call(near, number)
            return tracer.near(near, lambda traced: of_one(traced, number)) if kept is None else kept

        return EncodedResponse(_or_why_not(answer))

    async def live(request: Request) -> Response:
        Query(request)
        return streams.answer()

    routes = [
        Route("/api/runs", runs),
        Route("/api/live", live),
        *(
            Route(f"/api/runs/{{run:int}}/{name}", endpoint)
            for name, endpoint in {
                "curves": curves,
                "doctor": doctor,
                "record": record,
                "heat": heatmap,
                "rows": rows,
                "plan": plan,
            }.items()
        ),
        *(
            Route(f"/api/runs/{{run:int}}/{name}", computing(endpoint))
            for name, endpoint in {
                "story": story,
                "batch": batch,
                "trace": trace,
                "element": element,
                "digits": digits,
                "picture": picture,
                "examples": examples,
                "attention": attention,
                "calls": calls,
                "call": call,
            }.items()
        ),
        Route("/api/learn/lesson", computing(lesson)),
        Route("/api/learn/planted", apart(planted)),
        Route("/api/learn/texts", taught(school.texts)),
        Route("/api/learn/exercises", taught(school.exercises)),
        Route("/api/learn/landscape", apart(taught(school.landscape))),
        Route("/api/learn/pathologies", apart(taught(school.pathologies))),
        *(Route(address, _page(kind, content)) for address, (kind, content) in pages().items()),
    ]
    said = {TapelessError: _sentence, Exception: _mistake, 404: _missing, 405: _missing}
    app = Starlette(routes=routes, exception_handlers=said)
    app.router.redirect_slashes = False
    return guarded(app, token, port)


def pages() -> dict[str, tuple[str, bytes]]:
    """Every page by its address, read when the server starts."""
    found = {}
    for file in resources.files("tapeless.explorer").joinpath("pages").iterdir():
        kind = TYPES.get(file.name.rpartition(".")[2])
        if kind is not None:
            found["/" if file.name == "index.html" else f"/{file.name}"] = (kind, file.read_bytes())
    return found


def _page(kind: str, content: bytes) -> Callable[[Request], Response]:
    return lambda request: Response(content, media_type=kind)


def _element(query: Query) -> tuple[int | None, int, int, int]:
    """Which update, which weight, which row and column of it."""
    return query.optional("step"), query.number("weight", 0), query.number("row", 0), query.number("column", 0)


def _or_why_not(ask: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Of a run that is young or damaged, what there is not is no mistake of the page's."""
    try:
        return ask()
    except TapelessError as error:
        return {"error": str(error)}


def _sentence(request: Request, error: Exception) -> Response:
    return EncodedResponse({"error": str(error)}, 422)


def _mistake(request: Request, error: Exception) -> Response:
    """One of ours. It goes on to the server, which writes where it happened to the terminal."""
    said = f"This could not be computed ({type(error).__name__}): the terminal of `tapeless explore` says where."
    return EncodedResponse({"error": f"{said} Please report it."}, 500)


def _missing(request: Request, error: Exception) -> Response:
    return PlainTextResponse("Not found.\n", 404)


def _binary(said: bytes, numbers: bytes) -> Response:
    """A line of JSON padded to 8 bytes, its length before it, then numbers as they lie in memory."""
    said += b" " * (-(len(said) + 8) % 8)
    return Response(len(said).to_bytes(8, "little") + said + numbers, media_type="application/octet-stream")


def open_socket(port: int = PORT) -> socket.socket:
    """A socket of this machine alone: the usual port, or where somebody has it any that is free."""
    for wanted in (port, 0):
        found = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            found.bind(("127.0.0.1", wanted))
            found.listen(128)  # a browser that is quicker than the server waits
            return found
        except OSError:
            found.close()
    raise TapelessError("no port of 127.0.0.1 is free for the explorer.")


def new_token() -> str:
    return secrets.token_urlsafe(24)


def serve(folders: list[Path], listening: socket.socket, token: str) -> None:
    """Until it is interrupted."""
    make_server(make_app(folders, token, listening.getsockname()[1])).run(sockets=[listening])


def address(listening: socket.socket, token: str) -> str:
    return f"http://127.0.0.1:{listening.getsockname()[1]}/#{token}"

"""Connections that never say what they want, or never take what they asked for, hold up nobody else."""

import asyncio
import json
import socket
import struct
import threading
import time
from contextlib import ExitStack, closing, contextmanager, suppress
from http.client import HTTPConnection
from itertools import cycle
from typing import Any

import pytest
from uvicorn.protocols.http.h11_impl import H11Protocol

from tapeless.explorer import connections, turns
from tapeless.explorer.guard import HEADERS
from tapeless.explorer.server import make_app, open_socket
from tapeless.explorer.source import RunSource
from tapeless.explorer.tracing import Tracer
from tapeless.explorer.turns import Streams
from tests.explorer.serving import TOKEN, Server, running, served

SOON = 20  # seconds, of which a test that holds needs next to none


@pytest.fixture
def server(tmp_path):
    with served(tmp_path / "run") as found:
        yield found


def asked(server, path, *headers):
    lines = [f"GET {path} HTTP/1.1", f"Host: {server.host}", f"X-Tapeless-Token: {TOKEN}", *headers]
    return "\r\n".join([*lines, "", ""]).encode()


def opened(server, sent):
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=SOON)
    connection.sendall(sent)
    return connection


def everything(connection):
    found = b""
    while piece := connection.recv(1 << 16):
        found += piece
    return found


@pytest.mark.parametrize("count", [80, 200])
def test_half_sent_requests_are_in_nobodys_way(server, count):
    with ExitStack() as stack:
        for sent, _ in zip(cycle((b"", b"G", b"GET / HTTP/1.1\r\nX-Slow: ")), range(count), strict=False):
            stack.enter_context(opened(server, sent))
        assert server.ask("/")[0] == 200
        assert server.get("/api/runs")[0]["name"] == "run"
        assert server.ask("/style.css")[0] == 200


@pytest.mark.parametrize("begun", [b"", b"GET / HTTP/1.1\r\nX-Slow: ", b"GET / HTTP/1.1\r\nHost: x\r\n\r\nGET /"])
def test_a_request_must_come_to_its_end(server, monkeypatch, begun):
    monkeypatch.setattr(connections, "PATIENCE", 0.1)
    monkeypatch.setattr(H11Protocol, "timeout_keep_alive_handler", lambda self: None)
    with opened(server, begun) as connection:
        said = everything(connection)
    late = said.rpartition(b"HTTP/1.1 ")[2]
    assert late.startswith(b"408 Request Timeout\r\n") == bool(begun)
    assert late.endswith(b"\r\n\r\nThe request did not come to an end.\n") == bool(begun)
    assert all(b"%s: %s" % each in late for each in HEADERS) or not begun


@pytest.mark.parametrize("length", [None, 100_000])
def test_dripping_prolongs_nothing(server, monkeypatch, length):
    monkeypatch.setattr(connections, "PATIENCE", 0.2)
    begun = b"GET / HTTP/1.1\r\nX-Slow: " if length is None else asked(server, "/", f"Content-Length: {length}")
    began = time.monotonic()
    with opened(server, begun) as connection, suppress(ConnectionError):
        while time.monotonic() - began < SOON:
            connection.sendall(b"x")
            time.sleep(0.01)
    assert time.monotonic() - began < SOON


def test_a_connection_that_asks_again_and_again_is_kept(server):
    connection = HTTPConnection("127.0.0.1", server.port, timeout=SOON)
    connection.connect()
    with closing(connection), connection.sock as kept:
        for _ in range(3):
            connection.request("GET", "/icon.svg")
            assert connection.getresponse().read()
            assert connection.sock is kept
    with opened(server, 3 * asked(server, "/icon.svg") + asked(server, "/icon.svg", "Connection: close")) as pipelined:
        assert everything(pipelined).count(b"HTTP/1.1 200 OK") == 4


def status(connection):
    found = b""
    while b"\r\n\r\n" not in found:
        piece = connection.recv(1 << 12)
        assert piece, found
        found += piece
    return int(found.split()[1]), found


def test_of_streams_that_come_at_once_so_many_are_served_and_no_more(server, monkeypatch):
    monkeypatch.setattr(turns, "LOOK", 0.02)
    with ExitStack() as stack:
        live = [stack.enter_context(opened(server, b"")) for _ in range(20)]
        for each in live:
            each.sendall(asked(server, "/api/live", "Connection: close"))
        found = [status(each) for each in live]
        assert sorted(number for number, _ in found) == [200] * 16 + [503] * 4
        refused = [said + everything(each) for each, (number, said) in zip(live, found, strict=True) if number == 503]
        assert all(b"16 pages look already: close one.\n" in said for said in refused)
        assert server.ask("/")[0] == 200
        serving = [each for each, (number, _) in zip(live, found, strict=True) if number == 200]
        serving[0].close()
        serving[1].setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # without a farewell
        serving[1].close()
        serving[2].shutdown(socket.SHUT_WR)
        again: list[socket.socket] = []
        began = time.monotonic()
        while len(again) < 3:
            assert time.monotonic() - began < SOON
            connection = stack.enter_context(opened(server, asked(server, "/api/live")))
            if status(connection)[0] == 200:
                again.append(connection)
        with opened(server, asked(server, "/api/live")) as connection:
            assert status(connection)[0] == 503


def test_a_stream_ends_after_a_while_and_its_place_is_free(server, monkeypatch):
    monkeypatch.setattr(turns, "LOOK", 0.01)
    monkeypatch.setattr(turns, "LONGEST_STREAM", 0.1)
    monkeypatch.setattr(turns, "MOST_STREAMS", 1)
    for _ in range(2):
        with opened(server, asked(server, "/api/live", "Connection: close")) as connection:
            said = everything(connection)
        assert said.startswith(b"HTTP/1.1 200")
        assert b"still here" in said
        assert said.endswith(b"0\r\n\r\n")


@contextmanager
def sending(size):
    """A server whose every answer has so many bytes."""

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": bytes(size)})

    listening = open_socket(0)
    port = listening.getsockname()[1]
    with running(connections.make_server(app, "critical"), listening):
        yield Server(port)


@pytest.mark.parametrize("header", ["Connection: close", "X-Stays: yes"])
def test_an_answer_that_nobody_takes_is_ended(monkeypatch, header):
    monkeypatch.setattr(connections, "STUCK", 0.1)
    ended = threading.Event()
    lost = H11Protocol.connection_lost

    def noted(self, exc):
        lost(self, exc)
        ended.set()

    monkeypatch.setattr(H11Protocol, "connection_lost", noted)
    with sending(50 << 20) as server, opened(server, asked(server, "/", header)):
        assert ended.wait(SOON)


def test_an_answer_that_is_taken_slowly_comes_whole(monkeypatch):
    monkeypatch.setattr(connections, "STUCK", 0.2)
    size = 30 << 20
    with sending(size) as server, opened(server, asked(server, "/", "Connection: close")) as connection:
        found = 0
        while piece := connection.recv(1 << 19):
            found += len(piece)
            time.sleep(0.005)
        assert found >= size


def test_more_requests_than_can_be_in_hand_are_refused(monkeypatch):
    go = asyncio.Event()

    async def slow(scope, receive, send):
        await go.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def main():
        said: list[int | None] = []

        async def send(message):
            said.append(message.get("status"))

        async def receive():
            return {"type": "http.disconnect"}

        app: Any = connections.at_most(slow, 2)
        asks: list[asyncio.Task[None]] = [asyncio.create_task(app({}, receive, send)) for _ in range(3)]
        await asks[2]
        go.set()
        await asyncio.gather(*asks)
        await app({}, receive, send)
        return said

    assert asyncio.run(main()) == [503, None, 200, 200, 200]


def test_who_waits_for_a_computation_takes_no_thread(server, monkeypatch):
    go, began, asks = threading.Event(), threading.Event(), []

    def slow(self, step):
        asks.append(step)
        began.set()
        assert go.wait(SOON)
        return {"step": step}

    monkeypatch.setattr(Tracer, "overview", slow)
    with ExitStack() as stack:
        ask = asked(server, "/api/runs/0/trace?step=1", "Connection: close")
        waiting = [stack.enter_context(opened(server, ask))]
        assert began.wait(SOON)
        waiting += [stack.enter_context(opened(server, ask)) for _ in range(turns.MOST_TURNS + 20)]
        refused = [everything(each) for each in waiting[-10:]]
        assert all(b" 503 " in each and b"ask again in a moment" in each for each in refused)
        assert "steps" in server.get("/api/runs/0/curves")
        assert "error" in server.get("/api/runs/0/record")
        for each in waiting[1:10]:
            each.close()
        assert server.ask("/")[0] == 200  # the server has heard of it: it came after
        go.set()
        assert json.loads(everything(waiting[0]).partition(b"\r\n\r\n")[2]) == {"step": 1}
        everything(waiting[turns.MOST_TURNS - 1])
        assert len(asks) == turns.MOST_TURNS - 9  # those who left were passed over


def test_a_source_that_fails_frees_the_place(server, monkeypatch):
    monkeypatch.setattr(turns, "MOST_STREAMS", 1)

    def broken(self):
        raise OSError("a disk is gone")

    state = RunSource.state
    monkeypatch.setattr(RunSource, "state", broken)
    with opened(server, asked(server, "/api/live")) as connection:
        everything(connection)
    monkeypatch.setattr(RunSource, "state", state)
    with opened(server, asked(server, "/api/live")) as connection:
        assert status(connection)[0] == 200


def test_ctrl_c_ends_streams_and_computations_without_a_word(tmp_path, monkeypatch, capfd):
    """Each open page once made sixty lines of traceback of it."""
    go, began = threading.Event(), threading.Event()

    def slow(self, step):
        began.set()
        assert go.wait(SOON)
        return {}

    monkeypatch.setattr(Tracer, "overview", slow)
    listening = open_socket(0)
    port = listening.getsockname()[1]
    app = make_app([tmp_path / "run"], TOKEN, port)
    with ExitStack() as stack, running(connections.make_server(app), listening):
        server = Server(port)
        live = [stack.enter_context(opened(server, asked(server, "/api/live"))) for _ in range(3)]
        assert [status(each)[0] for each in live] == [200] * 3
        stack.enter_context(opened(server, asked(server, "/api/runs/0/trace?step=1")))
        assert began.wait(SOON)
        go.set()
    assert capfd.readouterr().err == ""


def test_who_waits_leaves_room_for_pages():
    """Computations of two kinds and streams may wait; whatever else is asked must not be refused for them."""
    assert connections.MOST_AT_ONCE - 2 * turns.MOST_TURNS - turns.MOST_STREAMS >= 16


def test_streams_that_begin_in_the_same_moment_are_counted():
    async def main():
        streams, gone, said = Streams([]), asyncio.Event(), []

        async def receive():
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message):
            if "status" in message:
                said.append(message["status"])

        async def ask(count):
            scope = {"type": "http", "asgi": {"spec_version": "2.3"}}
            return [asyncio.create_task(streams.serve(scope, receive, send)) for _ in range(count)]

        asks = await ask(20)
        while len(said) < 20:
            await asyncio.sleep(0)
        gone.set()
        await asyncio.gather(*asks)
        await asyncio.gather(*await ask(16))
        return said

    said = asyncio.run(main())
    assert sorted(said) == [200] * 32 + [503] * 4

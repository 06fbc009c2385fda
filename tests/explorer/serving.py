"""A server of a few runs in a thread of this process, and a client that sends what it is told, byte for byte."""

import json
import socket
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tapeless.explorer.connections import make_server
from tapeless.explorer.server import make_app, open_socket
from tapeless.train.session import start
from tapeless.train.settings import Request, Settings

TOKEN = "a-token-of-twenty-four-bytes"


def trained(folder: Path, steps: int = 12, whole: str | None = None, backend: str = "cpu", **fields: Any) -> Path:
    model: dict[str, Any] = {"layers": 2, "channels": 8, "heads": 2, **fields}
    how: dict[str, Any] = {"batch": 200, "lr": 3e-3, "eval_every": 4, "log_every": 1, "record": 1}
    settings = Settings(data="operations", steps=steps, record_tensors=whole, backend=backend, **how)
    start(Request("ops-102k", model, settings), folder).train()
    return folder


class Server:
    def __init__(self, port: int) -> None:
        self.port = port
        self.host = f"127.0.0.1:{port}"

    @property
    def address(self) -> str:
        return f"http://{self.host}/#{TOKEN}"

    def raw(self, request: bytes, whole: bool = True) -> bytes:
        """All that comes back. A request that is not whole is ended, as nobody would answer it."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=20) as connection:
            connection.sendall(request)
            if not whole:
                connection.shutdown(socket.SHUT_WR)
            found = b""
            while piece := connection.recv(1 << 16):
                found += piece
            return found

    def ask(self, path: str, *headers: str, method: str = "GET", host: str | None = None) -> tuple[int, bytes, bytes]:
        """Status, head and body. Headers are lines; Host is ours unless it is said."""
        lines = [f"{method} {path} HTTP/1.1", f"Host: {self.host if host is None else host}", *headers]
        answer = self.raw("\r\n".join([*lines, "Connection: close", "", ""]).encode("latin-1"))
        head, _, body = answer.partition(b"\r\n\r\n")
        return int(head.split()[1]) if head else 0, head, body

    def get(self, path: str) -> Any:
        status, _, body = self.ask(path, f"X-Tapeless-Token: {TOKEN}")
        assert status == 200, body
        return json.loads(body)


@contextmanager
def running(server: Any, listening: socket.socket):
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive()


@contextmanager
def served(*folders: Path, port: int = 0, token: str = TOKEN):
    listening = open_socket(port)
    port = listening.getsockname()[1]
    with running(make_server(make_app(list(folders), token, port), log_level="critical"), listening):
        yield Server(port)

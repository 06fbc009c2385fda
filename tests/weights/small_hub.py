"""A hub of our own on this machine: the few addresses that a client asks for, and a list of what it asked."""

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub:
    def __init__(self, models: dict[str, Path], gated: tuple[str, ...] = ()) -> None:
        self.models, self.gated = models, gated
        self.asked: list[str] = []  # files, in the order in which their content was
        self.address = ""

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/api/models/{owner}/{name}", self.info),
                Route("/api/models/{owner}/{name}/revision/{revision:path}", self.info),
                Route("/{owner}/{name}/resolve/{revision}/{file:path}", self.resolve, methods=["GET", "HEAD"]),
            ]
        )

    def _refusal(self, request: Request) -> Response | None:
        repo = "{owner}/{name}".format(**request.path_params)
        if repo in self.gated:
            return Response(status_code=403, headers={"X-Error-Code": "GatedRepo", "X-Error-Message": "ask first"})
        if repo not in self.models:
            return Response(status_code=404, headers={"X-Error-Code": "RepoNotFound"})
        if request.path_params.get("revision", "main") not in ("main", COMMIT):
            return Response(status_code=404, headers={"X-Error-Code": "RevisionNotFound"})
        return None

    def _files(self, request: Request) -> dict[str, Path]:
        folder = self.models["{owner}/{name}".format(**request.path_params)]
        return {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*")) if path.is_file()}

    async def info(self, request: Request) -> Response:
        refusal = self._refusal(request)
        if refusal is not None:
            return refusal
        repo = "{owner}/{name}".format(**request.path_params)
        listed = [{"rfilename": name} for name in self._files(request)]
        return JSONResponse(
            {"id": repo, "modelId": repo, "sha": COMMIT, "siblings": listed, "tags": [], "downloads": 0}
        )

    async def resolve(self, request: Request) -> Response:
        refusal = self._refusal(request)
        if refusal is not None:
            return refusal
        path = self._files(request).get(request.path_params["file"])
        if path is None:
            return Response(status_code=404, headers={"X-Error-Code": "EntryNotFound"})
        content = path.read_bytes()
        if request.method == "GET":
            self.asked.append(request.path_params["file"])
        headers = {"ETag": f'"{hashlib.sha256(content).hexdigest()}"', "X-Repo-Commit": COMMIT}
        return Response(content, headers=headers, media_type="application/octet-stream")


@contextmanager
def served(hub: Hub) -> Iterator[Hub]:
    config = uvicorn.Config(hub.app(), host="127.0.0.1", port=0, log_level="error", lifespan="off")
    server, listening = uvicorn.Server(config), config.bind_socket()
    listening.listen()  # from here on whoever asks waits for the server, and is not turned away
    hub.address = f"http://127.0.0.1:{listening.getsockname()[1]}"
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.should_exit = True
        thread.join()
        listening.close()

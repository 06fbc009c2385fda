"""The explorer as one file, to be sent to somebody: the pages, and every answer of the server that they ask for.

It is asked here as a browser would ask it, so nothing is computed in a second way. The file has no part that comes from
elsewhere; its policy allows its own script and style alone, by their hashes, and no connection.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import html
import json
import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tapeless.errors import TapelessError
from tapeless.explorer.guard import TOKEN, App, Message
from tapeless.explorer.server import make_app, pages
from tapeless.files.disk import write_whole
from tapeless.train.history.record import FILE as RECORD
from tapeless.train.metrics import FILE as METRICS
from tapeless.train.run import CONFIGURATION

MOST_ROWS = 3_000_000  # bytes of a run's record
MOST_MAPS = 3_000_000  # characters of what its heads look at
CHUNK, BINS = 64, 1024  # as the pages ask for them: model.js, heatmap.js
HEATS = ("flow", "weights", "calls")
SECRET = "of-this-process-alone"
IMPORT = re.compile(r'^import\s*\{([^}]*)\}\s*from\s*"\./(\w+)\.js";\n', re.MULTILINE)
EXPORT = re.compile(r"^export (?:async )?(?:function|class|const|let) (\w+)", re.MULTILINE)


def save_report(folders: list[Path], path: Path) -> int:
    """Its size. A file that is there already is never written over."""
    if os.path.lexists(path):
        raise TapelessError(f"{path} exists already: choose another name, or remove it.")
    if not path.parent.is_dir():
        raise TapelessError(f"{path.parent} is not a folder, so {path.name} cannot be saved in it.")
    content = report(folders).encode()
    write_whole(path, content)
    return len(content)


def report(folders: list[Path]) -> str:
    """What is damaged of a run is told in the pages; of a folder that holds nothing of one there is nothing to tell."""
    for folder in folders:
        if not any(os.path.lexists(folder / name) for name in (CONFIGURATION, METRICS, RECORD)):
            raise TapelessError(f"{folder} holds no run: give the folder of one, such as runs/ops-102k-001.")
    names = ", ".join(folder.name or str(folder) for folder in folders)
    with ThreadPoolExecutor(1) as thread:  # where a loop runs already, as in a notebook, there may be no second
        found = thread.submit(lambda: asyncio.run(answers(make_app(folders, SECRET, 0, MOST_ROWS)))).result()
    return page(f"{names} in the Tapeless explorer", found)


async def answers(app: App) -> dict[str, Any]:
    """By address, what the pages ask for."""
    found: dict[str, Any] = {}

    async def ask(address: str) -> Any:
        status, kind, body = await _asked(app, address)
        if status == 200:
            found[address] = _binary(body) if kind == b"application/octet-stream" else json.loads(body)
        return found.get(address)

    for number, _ in enumerate(await ask("/api/runs")):
        run = f"/api/runs/{number}"
        record = await ask(f"{run}/record")
        wanted = ["curves?generation=0&cursor=0", "doctor", "story", "plan?"]
        wanted += [f"heat?what={each}&bins={BINS}" for each in HEATS]
        wanted += [f"rows?from={start}&to={start + CHUNK}" for start in range(0, record.get("rows", 0), CHUNK)]
        wanted += _traced(await ask(f"{run}/trace"))
        for each in wanted:
            await ask(f"{run}/{each}")
        room = MOST_MAPS
        for step in (await ask(f"{run}/examples")).get("steps", ()):
            address = f"{run}/attention?step={step}&example=0&text="
            maps = await ask(address)
            room -= len(maps["data"]) if maps else 0
            if room < 0:
                del found[address]
                break
    lesson = await ask("/api/learn/lesson")
    for at in range(len(lesson.get("steps", ()))):
        await ask(f"/api/learn/lesson?at={at}")
    for each in ("texts", "exercises", "landscape"):
        await ask(f"/api/learn/{each}")
    return found


def _traced(overview: dict[str, Any]) -> list[str]:
    """What the traced weight's page asks for first: the largest update and the largest gradient."""
    wanted = []
    for what, at in overview.get("largest", {}).items():
        place = f"step={overview['step']}&weight={at['weight']}&row={at['row']}&column={at['column']}"
        picture = f"picture?step={overview['step']}&weight={at['weight']}&what={what}"
        wanted += [picture, f"element?{place}", f"digits?{place}"]
    return wanted


async def _asked(app: App, address: str) -> tuple[int, bytes, bytes]:
    path, _, query = address.partition("?")
    headers = [(b"host", b"127.0.0.1:0"), (TOKEN, SECRET.encode())]
    scope = {
        "type": "http",
        "method": "GET",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": headers,
        "http_version": "1.1",
        "scheme": "http",
        "root_path": "",
        "asgi": {"version": "3.0"},
        "server": ("127.0.0.1", 0),
        "client": ("127.0.0.1", 0),
    }
    status, kind, body = 0, b"", b""

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        nonlocal status, kind, body
        if message["type"] == "http.response.start":
            status, kind = message["status"], dict(message["headers"]).get(b"content-type", b"")
        else:
            body += message.get("body", b"")

    await app(scope, receive, send)
    return status, kind, body


def _binary(body: bytes) -> dict[str, Any]:
    """A line of JSON and numbers, as the server sends them, in a form that JSON can hold."""
    length = int.from_bytes(body[:8], "little")
    return {"head": json.loads(body[8 : 8 + length]), "data": base64.b64encode(body[8 + length :]).decode()}


def page(title: str, found: dict[str, Any]) -> str:
    known = {address.removeprefix("/"): content.decode() for address, (_, content) in pages().items()}
    script, style = bundled(known), known["style.css"]
    policy = (
        f"default-src 'none'; script-src {_hashed(script)}; style-src {_hashed(style)}; img-src data:; "
        f"base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )
    icon = base64.b64encode(known["icon.svg"].encode()).decode()
    # Whatever a run says is text: no character of it can end the element that it stands in.
    told = json.dumps(found, ensure_ascii=True).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    meta, data = '<meta http-equiv="Content-Security-Policy"', '<script type="application/json" id="answers">'
    parts = {
        '<meta charset="utf-8">\n': f'<meta charset="utf-8">\n{meta} content="{policy}">\n',
        "<title>Tapeless explorer</title>": f"<title>{html.escape(title)}</title>",
        'href="/icon.svg"': f'href="data:image/svg+xml;base64,{icon}"',
        '<link rel="stylesheet" href="/style.css">': f"<style>{style}</style>",
        '<script type="module" src="/app.js"></script>\n': "",
        "</body>": f'{data}{told}</script>\n<script type="module">{script}</script>\n</body>',
    }
    made = known[""]
    for before, after in parts.items():
        if made.count(before) != 1:
            raise TapelessError(f"index.html no longer has one {before.strip()!r}: the export must learn what it has.")
        made = made.replace(before, after)
    return made


def bundled(known: dict[str, str], first: str = "app") -> str:
    """Our modules as one script: each a function of its own that gives back what it exports, those it imports before
    it. The server's module is exchanged for the one that has the answers."""
    made: dict[str, str] = {}

    def add(name: str) -> None:
        if name in made:
            return
        source = known["sealed.js" if name == "api" else f"{name}.js"]
        for _, imported in IMPORT.findall(source):
            add(imported)
        exported = EXPORT.findall(source)
        body = IMPORT.sub(lambda found: f"const {{{found[1].replace(' as ', ': ')}}} = {found[2]}_module;\n", source)
        body = re.sub(r"^export ", "", body, flags=re.MULTILINE)
        made[name] = f"const {name}_module = (() => {{\n{body}\nreturn {{ {', '.join(exported)} }};\n}})();\n"

    add(first)
    return "\n".join(made.values())


def _hashed(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

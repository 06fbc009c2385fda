"""The server: what it says of a run is what the engine did; nobody else is answered; no folder breaks it."""

import json
import os
import shutil
import threading
from contextlib import suppress
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest

from tapeless import Model
from tapeless.errors import TapelessError
from tapeless.explorer import server as explorer
from tapeless.explorer.attention import Attending
from tapeless.explorer.batch import batch_of
from tapeless.explorer.guard import HEADERS, refusal
from tapeless.explorer.source import RunSource
from tapeless.tasks.operations import WORDS, ExpressionReader, spell, split
from tapeless.train import metrics
from tapeless.train.doctor import diagnose
from tapeless.train.history.files import files_in
from tapeless.train.history.record import flow, read_record
from tapeless.train.history.snapshots import FOLDER as SNAPSHOTS
from tapeless.train.history.snapshots import read_snapshots
from tapeless.train.metrics import read_metrics
from tapeless.train.run import open_run
from tapeless.train.session import start
from tapeless.train.settings import Request, Settings
from tests.explorer.serving import TOKEN, served, trained
from tests.train.histories import change_snapshot

WITH_TOKEN = f"X-Tapeless-Token: {TOKEN}"
ENDPOINTS = [f"/0/{name}" for name in ("curves", "doctor", "record", "plan", "heat", "rows?from=0&to=9")]
ENDPOINTS += [f"/0/{name}" for name in ("story", "trace", "element", "digits", "picture", "examples", "attention")]
ENDPOINTS += ["/0/calls", "/0/calls?what=error", "/0/calls?what=time", "/0/call?call=3"]
FIELDS: dict[str, Any] = {"layers": 2, "channels": 8, "heads": 2}
SECRETS = (b"gradient_norm", b"ops-102k", b"linear", b"peak_bytes", b"root:", b"listing")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    parent = tmp_path_factory.mktemp("runs")
    return [trained(parent / "one"), trained(parent / "two", steps=8)]


@pytest.fixture(scope="module")
def server(runs):
    (runs[0].parent / "one-more").mkdir()
    (runs[0].parent / "one-more" / "config.toml").write_text("root: secret")
    with served(*runs) as found:
        yield found


def numbers(body, kind):
    length = int.from_bytes(body[:8], "little")
    return json.loads(body[8 : 8 + length]), np.frombuffer(body[8 + length :], kind)


def test_curves_are_the_metrics(server, runs):
    found = server.get("/api/runs/0/curves")
    lines = [line for line in read_metrics(runs[0]) if line["kind"] == "step"]
    assert found["steps"]["step"] == [line["step"] for line in lines]
    assert found["steps"]["loss"] == [line["loss"] for line in lines]
    assert [each["step"] for each in found["evaluations"]] == [4, 8, 12]
    assert found["cursor"] == len(lines)
    more = server.get(f"/api/runs/0/curves?generation={found['generation']}&cursor=10")
    assert not more["fresh"]
    assert more["steps"]["step"] == [11, 12]


def test_heat_and_rows_are_the_record(server, runs):
    record = read_record(runs[0] / "record.jsonl")
    said = server.get("/api/runs/0/record")
    assert said["rows"] == 12
    assert said["flow"] == flow(record.header)
    _, _, body = server.ask("/api/runs/0/heat?what=flow&bins=64", WITH_TOKEN)
    head, table = numbers(body, "<f8")
    table = table.reshape(head["bins"], -1)
    column = record.header.column(said["flow"]["blocks.1"], "size")
    assert np.array_equal(table[:, 2 + head["lines"].index("blocks.1")], record.rows[:, column].astype(np.float64))
    assert table[:, 0].tolist() == record.steps.tolist()
    _, _, body = server.ask("/api/runs/0/rows?from=3&to=5", WITH_TOKEN)
    head, values = numbers(body, "<f4")
    assert np.array_equal(values.reshape(-1, head["width"]), record.rows[3:5])
    for what in ("weights", "calls"):
        status, _, body = server.ask(f"/api/runs/0/heat?what={what}&bins=3", WITH_TOKEN)
        assert (status, numbers(body, "<f8")[0]["bins"]) == (200, 3)


def test_the_plan_is_the_arena_and_follows_the_switches(server, runs):
    lowered = open_run(runs[0]).spec().plan().program
    plan = server.get("/api/runs/0/plan")
    assert plan["calls"] == len(lowered.calls) < len(lowered.original.calls)  # the built-in GEMM folds ReLU in, too
    assert "zero" in {call.op for call in lowered.original.calls} - {call.op for call in lowered.calls}
    assert len(plan["why"]) == len(plan["buffers"])
    assert server.get("/api/runs/0/plan?batch=400")["peak_bytes"] > plan["peak_bytes"]
    assert server.get("/api/runs/0/plan?precision=float64&backend=reference")["precision"] == "float64"
    assert server.get("/api/runs/0/plan?recompute=yes")["recompute"] is True
    status, _, body = server.ask("/api/runs/0/plan?precision=bfloat16&backend=nobody", WITH_TOKEN)
    assert (status, b"unknown backend" in body) == (422, True)
    assert "error" in server.get("/api/runs/0/plan?precision=complex128&backend=cpu")


def test_the_story_is_what_the_runs_own_weights_answer(server, runs):
    story = server.get("/api/runs/0/story?ask=Min(7,3,9)")
    assert (story["question"], story["answer"]) == ("Min(7,3,9)", "3")
    kept = read_snapshots(runs[0])
    assert [each["step"] for each in story["moments"]] == kept.steps
    tokens = ExpressionReader().expressions("Min(7,3,9)").tokens
    model = open_run(runs[0]).model("newest", backend="reference")[0]
    scores = model.logits(tokens)[0]
    last = story["moments"][-1]
    assert last["said"] == WORDS[int(scores.argmax())]
    assert last["likely"] == pytest.approx(np.exp(scores) / np.exp(scores).sum(), abs=1e-6)
    assert np.allclose(last["attention"]["blocks.0"], model.attention(tokens)["blocks.0"][0], atol=1e-4)
    assert story["moments"][0]["loss"] != last["loss"]
    assert story["held_out"] == ("Min(7,3,9)" in [spell(each) for each in split(0)[1].tokens])


@pytest.mark.parametrize(
    "asked", ["%3Cscript%3E", "Max(1,6,2)Min(1,2,3)", "Max(1,6", "%00", "..%2f..%2fetc%2fpasswd", "Max(%D9%A1,6,2)"]
)
def test_what_is_no_expression_is_answered_with_a_sentence(server, asked):
    answer = server.get(f"/api/runs/0/story?ask={asked}")
    assert list(answer) == ["error"]
    assert len(answer["error"]) < 300


def test_the_batch_of_a_step_is_drawn_again(tmp_path):
    session = start(
        Request("ops-102k", FIELDS, Settings(data="operations", batch=16, steps=3, accumulate=2)), tmp_path / "run"
    )
    session.train()
    stream = session.trainer.task.batches(16)
    seen = [next(stream) for _ in range(6)]
    found = batch_of(tmp_path / "run", 3)
    assert (found["step"], found["weights_of"]) == (3, 2)
    learned = sorted(spell(each) for inputs, _ in seen[4:] for each in inputs)
    assert sorted("".join(row["words"]) for row in found["rows"]) == learned
    assert [row["loss"] for row in found["rows"]] == sorted((row["loss"] for row in found["rows"]), reverse=True)
    model = Model("ops-102k", batch=32, backend="reference", optimizer=None, **FIELDS)
    for name, values in read_snapshots(tmp_path / "run").weights[2].items():
        model.write(name, values)
    inputs, targets = (np.concatenate(each) for each in zip(*seen[4:], strict=True))
    assert np.mean([row["loss"] for row in found["rows"]]) == pytest.approx(model.loss(inputs, targets))
    with pytest.raises(TapelessError, match="nothing was learned from"):
        batch_of(tmp_path / "run", 0)


def test_a_heatmap_is_cut_to_the_steps_that_are_asked_for(server, runs):
    record = read_record(runs[0] / "record.jsonl")
    _, _, body = server.ask("/api/runs/0/heat?what=flow&bins=64&from=4&to=6", WITH_TOKEN)
    head, table = numbers(body, "<f8")
    table = table.reshape(head["bins"], -1)
    assert table[:, 0].tolist() == [4, 5, 6]
    assert table[:, 1].tolist() == [3, 4, 5]
    column = record.header.column(flow(record.header)["blocks.1"], "size")
    assert table[:, 2 + head["lines"].index("blocks.1")].tolist() == record.rows[3:6, column].astype(float).tolist()
    _, _, body = server.ask("/api/runs/0/heat?what=flow&bins=64&from=100&to=200", WITH_TOKEN)
    assert numbers(body, "<f8")[0]["bins"] == 0


def test_a_run_that_kept_nothing_has_no_story(tmp_path):
    trained(tmp_path / "run", steps=2)
    shutil.rmtree(tmp_path / "run" / SNAPSHOTS)
    with served(tmp_path / "run") as server:
        assert "kept none of its weights" in server.get("/api/runs/0/story")["error"]


@pytest.mark.parametrize("value", [np.nan, np.inf, 3e38])
def test_weights_that_are_no_numbers_are_a_sentence(tmp_path, value):
    run = trained(tmp_path / "run", steps=2)
    change_snapshot(run, -1, value)
    with served(run) as server:
        assert "nothing can be computed with" in server.get("/api/runs/0/story")["error"]


def test_the_doctor_speaks(server):
    assert server.get("/api/runs/0/doctor")["diagnosis"]["sentence"]


def test_snapshots_that_are_damaged_are_counted(tmp_path, runs):
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.toml").write_bytes((runs[0] / "config.toml").read_bytes())
    shutil.copytree(runs[0] / SNAPSHOTS, run / SNAPSHOTS)
    paths = [*files_in(run / SNAPSHOTS).values()]
    with served(run) as server:
        whole = len(server.get("/api/runs/0/story")["moments"])
        paths[-1].write_bytes(paths[-1].read_bytes()[:-100])
        paths[-2].write_bytes(b"")
        story = server.get("/api/runs/0/story")
        assert (len(story["moments"]), story["lost"]) == (whole - 2, 2)


def test_a_line_that_is_none_is_named_by_its_number(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    lines = ['{"kind": "step", "step": 1, "loss": 1.0}', '{"kind": "else", "step": 1}', "[]"]
    (run / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    with served(run) as server:
        assert server.get("/api/runs/0/curves")["error"].startswith("line 3 of metrics.jsonl is not a line of metrics")
        assert "line 3 of" in server.get("/api/runs/0/doctor")["error"]


def test_a_mistake_of_ours_is_a_sentence_too(runs, monkeypatch):
    monkeypatch.setattr(explorer, "told_by", lambda *asked: [][1])
    with served(runs[0]) as server:
        status, head, body = server.ask("/api/runs/0/story", WITH_TOKEN)
        assert (status, b"application/json" in head) == (500, True)
        assert "could not be computed (IndexError)" in json.loads(body)["error"]
        monkeypatch.setattr(explorer, "told_by", lambda *asked: {"loss": float("nan")})
        status, _, body = server.ask("/api/runs/0/story", WITH_TOKEN)
        assert (status, "NaN or infinite" in json.loads(body)["error"]) == (422, True)


def test_numbers_are_computed_for_one_request_at_a_time(runs, monkeypatch):
    met, both = [], threading.Barrier(2)

    def compute(*asked):
        with suppress(threading.BrokenBarrierError):
            both.wait(0.5)
            met.append(asked)
        return {}

    monkeypatch.setattr(explorer, "told_by", compute)
    monkeypatch.setattr(Attending, "examples", compute)
    with served(runs[0]) as server:
        paths = [f"/api/runs/0/{name}" for name in ("story", "examples")]
        threads = [threading.Thread(target=server.get, args=(path,)) for path in paths]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert met == []


def test_every_answer_is_sealed(server):
    for path, headers in (("/", ()), ("/nothing", ()), ("/api/runs", ()), ("/api/runs", (WITH_TOKEN,))):
        _, head, _ = server.ask(path, *headers)
        for name, value in HEADERS:
            assert name + b": " + value in head
        assert b"access-control" not in head.lower()
        assert b"set-cookie" not in head.lower()


def hostile(port):
    """Requests that get no data, each as (what, bytes)."""
    ours, good = f"127.0.0.1:{port}", "/api/runs"

    def plain(path=good, *lines, method="GET", host=ours, token=TOKEN):
        sent = [f"{method} {path} HTTP/1.1", f"Host: {host}"] if host is not None else [f"{method} {path} HTTP/1.1"]
        sent += [f"X-Tapeless-Token: {token}"] if token is not None else []
        return "\r\n".join([*sent, *lines, "Connection: close", "", ""]).encode("latin-1")

    hosts = ["evil.example", f"evil.example:{port}", "127.0.0.1", "localhost", f"127.0.0.1:{port + 1}", "127.0.0.1:80"]
    hosts += [f"127.0.0.1:{port}.evil.example", f"evil.example/127.0.0.1:{port}", f"x127.0.0.1:{port}", f"{ours}x"]
    hosts += [
        f"127.0.0.1:{port}@evil.example",
        f"evil@127.0.0.1:{port}",
        f"0.0.0.0:{port}",
        f"[::1]:{port}",
        "null",
        "",
    ]
    hosts += [f"LOCALHOST:{port}", f"127.1:{port}", f"2130706433:{port}", f"127.0.0.1:0{port}", f"127.0.0.1.:{port}"]
    hosts += [
        f"localhost.:{port}",
        f"localhost:{port},evil.example",
        f"{ours}, {ours}",
        f"127.0.0.1:{port}#",
        "\xe4:80",
    ]
    hosts += [f"127.0.0.2:{port}", f"127.0.0.1:{port}/", f"127.0.0.1 :{port}", f"127.0.0.1: {port}", f"%31{ours[1:]}"]
    for host in hosts:
        yield f"host {host}", plain(host=host)
    yield "no host", plain(host=None)
    yield "two hosts", plain(good, f"Host: {ours}")
    yield "two hosts, one foreign", plain(good, "Host: evil.example")
    yield "a host in the target", plain(f"http://evil.example:{port}/api/runs", host="evil.example")

    origins = [
        "null",
        "http://evil.example",
        f"http://evil.example:{port}",
        f"https://{ours}",
        f"http://{ours}.evil.com",
    ]
    origins += [
        f"http://{ours}/",
        f"http://{ours}x",
        f"xhttp://{ours}",
        "http://127.0.0.1",
        "http://localhost",
        "file://",
    ]
    origins += [
        f"http://127.0.0.1:{port + 1}",
        f"HTTP://{ours}",
        f"http://{ours} http://evil.example",
        f"http://a@{ours}",
    ]
    origins += [
        f"http://localhost:{port}",
        "",
        f"//{ours}",
        ours,
        f"http://{ours}, http://{ours}",
        "*",
        f"http:///{ours}",
    ]
    for origin in origins:
        yield f"origin {origin}", plain(good, f"Origin: {origin}")
    yield "two origins", plain(good, f"Origin: http://{ours}", f"Origin: http://{ours}")
    for site in ("cross-site", "same-site", "SAME-ORIGIN", ""):
        yield f"fetched from {site}", plain(good, f"Sec-Fetch-Site: {site}")

    tokens = [
        None,
        "",
        "wrong",
        TOKEN[:-1],
        TOKEN + "x",
        TOKEN.upper(),
        f" {TOKEN[1:]}",
        "null",
        "undefined",
        "\xff" * 24,
    ]
    tokens += [TOKEN * 100, f"{TOKEN},{TOKEN}", f"Bearer {TOKEN}", f'"{TOKEN}"', f"{TOKEN};", "0", "*"]
    for token in tokens:
        yield f"token {token}", plain(token=token)
    yield "two tokens", plain(good, f"X-Tapeless-Token: {TOKEN}")
    yield "a token in a cookie", plain(good, f"Cookie: token={TOKEN}; X-Tapeless-Token={TOKEN}", token=None)
    yield "a token in the query", plain(f"/api/runs?token={TOKEN}&X-Tapeless-Token={TOKEN}", token=None)
    yield "a token as authorization", plain(good, f"Authorization: Bearer {TOKEN}", token=None)
    yield "a token in the path", plain(f"/api/runs/{TOKEN}", token=None)

    methods = (
        "POST",
        "PUT",
        "PATCH",
        "DELETE",
        "OPTIONS",
        "HEAD",
        "TRACE",
        "CONNECT",
        "PROPFIND",
        "get",
        "FOO",
        "DEBUG",
    )
    for method in methods:
        yield f"method {method}", plain(method=method)
    for name in ("X-HTTP-Method-Override", "X-Forwarded-Host", "X-Original-URL", "Forwarded"):
        yield f"{name} does not help a wrong host", plain(good, f"{name}: {ours}", host="evil.example")

    steps = [
        "../",
        "..%2f",
        "%2e%2e/",
        "%2e%2e%2f",
        "%252e%252e%252f",
        "..\\",
        "..%5c",
        "%c0%ae%c0%ae/",
        "....//",
        "..;/",
    ]
    steps += ["%uff0e%uff0e/", ".%2e/", "%2e./", "/", "./"]
    for step in steps:
        for begun in ("/", "/api/", "/api/runs/", "/api/runs/0/"):
            yield f"traversal {begun}{step}", plain(f"{begun}{step * 6}etc/passwd")
    siblings = ["one", "one-more", "one-more/config.toml", "../one-more/config.toml", "0-more", "0/../1/plan", "00/x"]
    siblings += [
        "0/config.toml",
        "0/metrics.jsonl",
        "0/record.jsonl",
        "0/checkpoints",
        "-1/plan",
        "2/plan",
        "99999999999/plan",
    ]
    siblings += [
        "0x0/plan",
        "0.0/plan",
        "0e0/plan",
        "+0/plan",
        "%30/plan",
        "0%00/plan",
        "0;/plan",
        "\u0661/plan",
        "0/plan/",
    ]
    for sibling in siblings:
        path = f"/api/runs/{sibling}".encode().decode("latin-1")
        yield f"sibling {sibling}", plain(path)
    for path in (
        "/server.py",
        "/pages/run.js",
        "/__init__.py",
        "/index.html/",
        "/style.css/..",
        "/api",
        "/api/",
        "/Api/runs",
    ):
        yield f"path {path}", plain(path)
    yield "NUL in the path", plain("/api/runs%00")
    yield "a long path", plain("/api/" + "a" * 5000)

    flood = "bytes=" + ",".join(f"{n}-{n + 1}" for n in range(500))
    for value in ("bytes=0-", "bytes=0-0", "bytes=-1", flood, "bytes=5-2", "lines=1", ""):
        yield f"range {value[:12]}", plain(good, f"Range: {value}")
    queries = [
        "what=" + "x" * 2000,
        "what=flow&what=flow",
        "nothing=1",
        "bins=0",
        "bins=-1",
        "bins=1e9",
        "bins=99999999999",
    ]
    queries += [
        "what=../../etc/passwd",
        "bins=%00",
        "what=%ff%fe",
        "bins=\u0663",
        "what[]=flow",
        "bins=5000",
        "=",
        "what=<script>",
    ]
    for query in queries:
        yield f"query {query[:20]}", plain(f"/api/runs/0/heat?{query}".encode().decode("latin-1"))
    for query in (
        "batch=0",
        "batch=-5",
        "batch=nan",
        "batch=99999999999999999999",
        "time=0",
        "time=4000000000",
        "recompute=maybe",
        "precision=pickle",
        "backend=os",
        "batch=2147483648",
    ):
        yield f"plan {query}", plain(f"/api/runs/0/plan?{query}")
    for query in ("step=0", "step=-1", "step=nan", "step=1&step=2", "step=99999999999", "of=3", "step=1;step=2"):
        yield f"batch {query}", plain(f"/api/runs/0/batch?{query}")
    for query in ("from=-1", "to=x", "from=1&from=2", "to=99999999999999"):
        yield f"heat {query}", plain(f"/api/runs/0/heat?what=flow&{query}")
    for query in ("ask=Max(1,6,2)&ask=Max(1,6,2)", "question=Max(1,6,2)", "ask=" + "Max(1,6,2)" * 101, "ask[]=x"):
        yield f"story {query[:40]}", plain(f"/api/runs/0/story?{query}")
    elements = ["weight=999", "row=99999", "column=99999", "weight=-1", "row=1e3", "step=-1", "what=update"]
    elements += ["weight=0&weight=1"]
    elements += ["step=99999999999999", "weight=../0", "row=%00", "column=<script>", "weight=NaN", "step=\u0663"]
    for query in elements:
        for path in ("element", "digits", "trace"):
            yield f"{path} {query}", plain(f"/api/runs/0/{path}?{query}".encode().decode("latin-1"))
    attention = ["example=99", "step=99", "text=nothing+known", "example=-1", "text=" + "x" * 990, "text=%ff"]
    attention += ["text=%00"]
    attention += ["text=Max(1,6,2)Max(1,6,", "step=1e9", "example=0&example=1", "head=1", "text=../../etc/passwd"]
    for query in attention:
        yield f"attention {query[:20]}", plain(f"/api/runs/0/attention?{query}")
    for query in ("what=nothing", "near=-1", "near=x", "what=error&what=error", "call=1", "near=%00", "step=1"):
        yield f"calls {query}", plain(f"/api/runs/0/calls?{query}")
    for query in ("call=-1", "call=1.5", "call=x", "near=1e3", "what=error", "call=0&call=0", "call=<script>"):
        yield f"call {query}", plain(f"/api/runs/0/call?{query}")
    yield "examples with a query", plain("/api/runs/0/examples?step=1")
    for query in ("what=weights", "what=", "weight=999", "what=update&what=update", "row=1", "weight=0x1"):
        yield f"picture {query}", plain(f"/api/runs/0/picture?{query}")
    yield "a body", plain(good, "Content-Length: 5") + b"hello"
    yield "a chunked body", plain(good, "Transfer-Encoding: chunked") + b"5\r\nhello\r\n0\r\n\r\n"
    yield "both lengths", plain(good, "Content-Length: 5", "Transfer-Encoding: chunked") + b"0\r\n\r\n"
    yield "two lengths", plain(good, "Content-Length: 0", "Content-Length: 9")
    yield "an upgrade", plain(good, "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13")
    yield "many headers", plain(good, *(f"X-{n}: y" for n in range(100)))
    yield "a huge header", plain(good, "X-Long: " + "y" * 40_000)
    yield (
        "a folded header",
        f"GET {good} HTTP/1.1\r\nHost: {ours}\r\nX-Tapeless-Token:\r\n\tbad\r\nConnection: close\r\n\r\n".encode(),
    )
    for noise in (b"", b"\r\n\r\n", b"\0" * 100, b"GET", b"GET / HTTP/9.9\r\n\r\n", b"\x16\x03\x01\x02\x00" * 20):
        yield f"noise {noise[:8]!r}", noise
    yield "HTTP/0.9", b"GET /api/runs\r\n\r\n"
    yield (
        "a bare newline",
        f"GET {good} HTTP/1.1\nHost: evil\nX-Tapeless-Token: {TOKEN}\nConnection: close\n\n".encode(),
    )


def test_no_hostile_request_is_answered_with_data(server):
    requests = dict(hostile(server.port))
    assert len(requests) >= 150
    for what, sent in requests.items():
        answer = server.raw(sent, whole=not what.startswith("noise"))
        head, _, body = answer.partition(b"\r\n\r\n")
        status = int(head.split()[1]) if head else 0
        assert status == 0 or 400 <= status < 500, (what, answer[:300])
        assert not any(secret in body for secret in SECRETS if not (secret == b"linear" and status == 422)), (
            what,
            body,
        )
        assert len(body) < 500, what
    assert len(server.get("/api/runs")) == 2


def test_a_wrong_token_is_compared_in_constant_time(monkeypatch):
    asked = []

    def compare(given, secret):
        asked.append((given, secret))
        return False

    monkeypatch.setattr("hmac.compare_digest", compare)
    scope = {"type": "http", "method": "GET", "path": "/api/runs", "raw_path": b"/api/runs", "query_string": b""}
    headers = [(b"host", b"h:1"), (b"x-tapeless-token", b"guess")]
    assert refusal({**scope, "headers": headers}, {b"h:1"}, b"secret")
    assert asked == [(b"guess", b"secret")]


def test_links_in_a_run_folder_are_not_followed(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("root: a secret\n")
    run = tmp_path / "run"
    run.mkdir()
    for name in ("config.toml", "metrics.jsonl", "record.jsonl", "snapshots", "lock"):
        (run / name).symlink_to(secret)
    with served(run) as server:
        for path in ("", *ENDPOINTS):
            _, _, body = server.ask(f"/api/runs{path}", WITH_TOKEN)
            assert b"a secret" not in body, path


@pytest.mark.parametrize("damage", ["empty", "no folder", "half", "noise", "pipes", "folders", "text"])
def test_a_damaged_folder_is_a_sentence(tmp_path, runs, damage):
    run = tmp_path / "run"
    names = ("config.toml", "metrics.jsonl", "record.jsonl")
    if damage != "no folder":
        run.mkdir()
    for name in names if damage not in ("no folder", "empty") else ():
        content = (runs[0] / name).read_bytes()
        if damage == "half":
            (run / name).write_bytes(content[: len(content) // 2])
        elif damage == "noise":
            (run / name).write_bytes(os.urandom(5000))
        elif damage == "pipes":
            os.mkfifo(run / name)
        elif damage == "folders":
            (run / name).mkdir()
        else:
            (run / name).write_text("<script>alert(1)</script>\n" * 3)
    with served(run) as server:
        for path in ("", *ENDPOINTS):
            status, head, body = server.ask(f"/api/runs{path}", WITH_TOKEN)
            assert status in (200, 422), (path, body)
            assert b"text/html" not in head
        assert server.get("/api/runs")[0]["name"] == "run"


def test_a_run_that_is_written_meanwhile_goes_on(tmp_path):
    run = tmp_path / "run"
    with served(run) as server:
        assert server.get("/api/runs/0/curves")["cursor"] == 0
        trained(run, steps=4)
        first = server.get("/api/runs/0/curves")
        assert first["cursor"] == 4
        with (run / "metrics.jsonl").open("ab") as file:
            file.write(b'{"kind": "step", "step": 5, "loss": 0.5, ')
        assert server.get("/api/runs/0/curves")["cursor"] == 4
        with (run / "metrics.jsonl").open("ab") as file:
            file.write(b'"lr": 0.1}\n')
        more = server.get(f"/api/runs/0/curves?generation={first['generation']}&cursor=4")
        assert more["steps"]["loss"] == [0.5]
        (run / "metrics.jsonl").write_bytes(b"")
        assert server.get(f"/api/runs/0/curves?generation={first['generation']}&cursor=5")["fresh"]


def test_long_metrics_are_drawn_together_and_keep_their_spikes(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    losses = [9.0 if step == 7777 else 1.0 for step in range(1, 20_001)]
    lines = (json.dumps({"kind": "step", "step": step, "loss": loss}) for step, loss in enumerate(losses, 1))
    (run / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    with served(run) as server:
        found = server.get("/api/runs/0/curves")
        assert len(found["steps"]["loss"]) <= 4000
        assert max(found["steps"]["loss"]) == 9.0


def test_the_stream_tells_what_is_new(tmp_path):
    run = tmp_path / "run"
    with served(run) as server:
        import http.client

        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
        connection.request("GET", "/api/live", headers={"X-Tapeless-Token": TOKEN})
        answer = connection.getresponse()
        assert answer.getheader("content-type", "").startswith("text/event-stream")

        def next_state():
            while not (line := answer.readline()).startswith(b"data: "):
                assert line
            return json.loads(line[6:])

        assert next_state()["record"] is None
        writer = threading.Thread(target=trained, args=(run,), kwargs={"steps": 4})
        writer.start()
        state = next_state()
        while state["metrics"][1] < 4 or state["record"] is None:
            state = next_state()
        writer.join()
        for file in sorted(run.rglob("*"), reverse=True):  # as it is removed: the folder itself goes last
            file.rmdir() if file.is_dir() else file.unlink()
        while state["metrics"][1] or state["record"]:
            state = next_state()
        assert state["there"]
        run.rmdir()
        assert not next_state()["there"]
        connection.close()


def test_each_line_of_metrics_is_read_once_whatever_is_looked_at(tmp_path, monkeypatch):
    run = tmp_path / "run"
    run.mkdir()
    lines = [
        {"kind": "step", "step": step, "loss": 1.0 + step % 7, "update_ratios": {"a": 1e-3, "b": 3e-3}}
        for step in range(1, 10_001)
    ]
    lines.append({"kind": "evaluation", "step": 10_000, "loss": 2.0})
    read = []
    parsed = metrics.parsed

    def counted(row):
        read.append(row)
        return parsed(row)

    monkeypatch.setattr(metrics, "parsed", counted)
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    source = RunSource(run)
    for _ in range(3):
        found = source.curves(0, 0)
        source.state()
        said = source.doctor()
    assert len(read) == len(lines)
    assert [said["diagnosis"], *said["findings"]] == [asdict(each) for each in diagnose(lines)]
    assert set(found["steps"]["update_ratio"]) == {2e-3}
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"kind": "step", "step": 10_001, "loss": 0.5, "lr": None}) + "\n")
    more = source.curves(found["generation"], found["cursor"])
    assert (more["steps"]["loss"], more["steps"]["lr"], more["fresh"]) == ([0.5], [None], False)
    assert len(read) == len(lines) + 1
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"kind": "evaluation", "step": 10_001, "loss": 0.1}) + "\n")
    assert source.doctor() != said
    assert len(read) == len(lines) + 2
    (run / "metrics.jsonl").unlink()
    with pytest.raises(TapelessError, match="there are no metrics"):
        source.doctor()

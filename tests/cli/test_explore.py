"""`tapeless explore`: what it says before it opens anything, and that what it opened answers."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from urllib.parse import urlsplit

import pytest

from tapeless.cli.explore import newest
from tapeless.errors import TapelessError
from tests.explorer.serving import trained


def test_without_runs_it_says_how_to_make_one(tmp_path):
    with pytest.raises(TapelessError, match=r"there is no run in .* yet: name one, or train one"):
        newest(tmp_path)


def test_the_newest_run_is_the_last_written(tmp_path):
    for age, name in enumerate(("c", "a", "b")):
        (tmp_path / name).mkdir()
        for file in ("config.toml", "metrics.jsonl"):
            (tmp_path / name / file).touch()
            os.utime(tmp_path / name / file, (1000 - age, 1000 - age))
        os.utime(tmp_path / name, (1000 - age, 1000 - age))
    (tmp_path / "no run").mkdir()
    assert newest(tmp_path).name == "c"
    os.utime(tmp_path / "b" / "metrics.jsonl", (2000, 2000))
    assert newest(tmp_path).name == "b"


def command(folder, *words):
    return subprocess.Popen(
        [sys.executable, "-m", "tapeless", "explore", *words],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_it_serves_until_it_is_interrupted(tmp_path):
    trained(tmp_path / "runs" / "one", steps=2)
    process = command(tmp_path, "--json", "--no-browser", "--port", "0")
    assert process.stdout
    said = json.loads(process.stdout.readline())
    assert said["runs"] == ["runs/one"]
    parts = urlsplit(said["address"])
    assert parts.hostname == "127.0.0.1"
    request = urllib.request.Request(f"http://{parts.netloc}/api/runs", headers={"X-Tapeless-Token": parts.fragment})
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert json.load(answer)[0]["name"] == "one"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert "Traceback" not in errors
    assert process.returncode in (0, 130)


def test_what_is_no_folder_is_refused(tmp_path):
    process = command(tmp_path, "nowhere")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "nowhere is not a folder" in errors


def test_a_report_that_is_there_is_not_written_over(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "report.html").write_text("mine")
    process = command(tmp_path, "run", "--export", "report.html")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "report.html exists already: choose another name, or remove it." in errors
    assert (tmp_path / "report.html").read_text() == "mine"

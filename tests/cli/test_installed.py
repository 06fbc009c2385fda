"""The built wheel without the checkout: installed by itself beside the packages it needs, used from an empty folder."""

import json
import site
import subprocess
import sys
import zipfile

import pytest
from tools.wheel_check import build, outside

TINY = [
    "--set",
    "layers=1",
    "--set",
    "channels=8",
    "--set",
    "heads=2",
    "--time",
    "8",
    "--steps",
    "3",
    "--backend",
    "reference",
]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return build(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def program(wheel, tmp_path_factory):
    """`tapeless` in an environment that has the wheel, and sees what else is installed here behind it."""
    environment = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    install = [sys.executable, "-m", "pip", "--python", environment, "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*install, "--disable-pip-version-check", wheel], check=True, env=outside(), capture_output=True)
    (packages,) = environment.glob("lib/*/site-packages")
    (packages / "behind.pth").write_text("\n".join(site.getsitepackages()) + "\n")
    return environment / "bin/tapeless"


def run(*words, folder):
    command = [*map(str, words)]  # which writes UTF-8 in any locale
    done = subprocess.run(command, cwd=folder, env=outside(), capture_output=True, encoding="utf-8")
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_wheel_holds_the_package_and_the_pages(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    for wanted in ("tapeless/__main__.py", "tapeless/docs/training.md", "tapeless/docs/decisions/README.md"):
        assert wanted in names
    assert not [name for name in names if name.startswith(("tests", "tools", "benchmarks"))]


def test_it_trains_and_writes_from_an_empty_folder(program, tmp_path):
    where = "import tapeless; print(tapeless.__file__)"
    assert str(program.parents[1]) in run(program.parent / "python", "-c", where, folder=tmp_path)
    assert "ops-102k" in run(program, "presets", folder=tmp_path)
    (tmp_path / "notes.jsonl").write_text("".join(json.dumps({"text": f"note {n}"}) + "\n" for n in range(40)))
    told = json.loads(run(program, "train", "gpt2-4x256", "--data", "notes.jsonl", *TINY, "--json", folder=tmp_path))
    assert told["steps"] == 3
    written = run(program, "sample", told["run"], "--count", "5", "--backend", "reference", "--json", folder=tmp_path)
    assert len(json.loads(written)["tokens"]) <= 5


def test_the_pages_and_the_module_are_there(program, tmp_path):
    assert "Training on your own text" in run(program, "help", "training", folder=tmp_path)
    module = [program.parent / "python", "-m", "tapeless"]
    assert run(*module, "--version", folder=tmp_path) == run(program, "--version", folder=tmp_path)

"""Compiled kernels on disk: used where they are of what is there now, and done without where the disk gives none."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tapeless.kernels.cpu import cache as kernel_cache

STEP = (
    "import numpy as np\n"
    "from tapeless.ops.tanh import cpu as tanh\n"
    "x = np.linspace(-3, 3, 8, dtype=np.float32)\n"
    "y = np.empty_like(x)\n"
    "for run in tanh.forward(y, x):\n"
    "    run()\n"
    "assert abs(y - np.tanh(x)).max() < 1e-6\n"
    "from tapeless.kernels.cpu.functions import compilations\n"
    "print([entry.cached for entry in compilations if entry.kernel.startswith('tanh')])\n"
)


def run(code, folder, **environment):
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(folder), **environment}
    return subprocess.run([sys.executable, "-c", code + STEP], capture_output=True, text=True, env=environment)


def test_a_folder_that_cannot_be_written_is_told_of_once(tmp_path):
    """Read-only, or not there: no way to keep anything."""
    code = (
        "import errno\n"
        "from numba.core import caching\n"
        "def refuse(self):\n"
        "    raise OSError(errno.EROFS, 'Read-only file system')\n"
        "caching._CacheLocator.ensure_cache_path = refuse\n"
    )
    done = run(code, tmp_path)
    assert (done.returncode, done.stdout) == (0, "[False]\n"), done.stderr
    assert done.stderr.count("compiled kernels cannot be kept") == 1
    assert "NUMBA_CACHE_DIR" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_disk_that_is_full_is_told_of_and_nothing_half_is_left(tmp_path):
    """No file may grow beyond a kilobyte: the index fits, the machine code does not."""
    code = (
        "import resource, signal\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1500, resource.RLIM_INFINITY))\n"
    )
    done = run(code, tmp_path)
    assert (done.returncode, done.stdout) == (0, "[False]\n"), done.stderr
    assert "compiled kernels cannot be kept" in done.stderr
    assert "Traceback" not in done.stderr
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    assert run("", tmp_path).stdout == "[False]\n"
    assert run("", tmp_path).stdout == "[True]\n"


@pytest.mark.parametrize("content", [b"", b"not a pickle"])
def test_what_a_crash_left_is_compiled_anew(tmp_path, content):
    run("", tmp_path)
    files = list(tmp_path.rglob("*.nb?"))
    assert len(files) == 4  # the kernel, and what shares out its loop
    for path in files:
        path.write_bytes(content)
    done = run("", tmp_path)
    assert done.stdout == "[False]\n", done.stderr


def test_a_change_in_what_is_inlined_is_noticed(tmp_path):
    """tanh takes its exp from vector.py, which is another file than its own."""
    changed = (
        "from pathlib import Path\n"
        "right = Path.read_bytes\n"
        "Path.read_bytes = lambda path: right(path) + (b'# changed' if path.name == 'vector.py' else b'')\n"
    )
    assert run("", tmp_path).stdout == "[False]\n"
    assert run("", tmp_path).stdout == "[True]\n"
    assert run(changed, tmp_path).stdout == "[False]\n"


def test_what_a_kernel_is_made_of():
    from tapeless.ops.cached_attention import cpu as cached_attention
    from tapeless.ops.zero import cpu as zero

    def reached(module):
        found, waiting = set(), [module.__name__]
        while waiting:
            name = waiting.pop()
            if name not in found:
                found.add(name)
                waiting += kernel_cache._imported(name)
        return found

    assert {"tapeless.ops.attention.cpu", "tapeless.kernels.cpu.vector"} <= reached(cached_attention)
    assert "tapeless.ops.attention.cpu" not in reached(zero)
    assert kernel_cache.digest(zero.__name__) != kernel_cache.digest(cached_attention.__name__)
    assert all(Path(sys.modules[name].__file__ or "").exists() for name in reached(zero))


COLD = (
    "import tapeless\n"
    "from tapeless.kernels.cpu import compilations, compile, dispatch\n"
    "dispatch.set_gemm_library('own')\n"
    "dispatch.set_threads(min(2, dispatch.cores()))\n"
    "told = []\n"
    "compile.progress_listeners.append(lambda done, total: told.append((done, total)))\n"
    "for threads in {1, dispatch.threads()}:\n"
    "    dispatch.set_threads(threads)\n"
    "    tapeless.Model('ops-102k', batch=32, layers=1)\n"
    "print([each.kernel for each in compilations], told[-1:], [each.cached for each in compilations])\n"
)


def cold(folder):
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(folder)}
    done = subprocess.run([sys.executable, "-c", COLD], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout, sorted(path.name.split("-")[0] for path in folder.rglob("*.nbi"))


def test_what_a_cold_start_compiles(tmp_path):
    """Each kernel in one form, on one thread and on many, whoever compiled it; and nothing the next time."""
    _, files = cold(tmp_path)
    kernels = [name for name in files if not name.startswith(("pool.", "gemm_float32.rectangle_of_tiles"))]
    assert len(kernels) == len(set(kernels)) <= 20, kernels
    assert not [name for name in files if "serial" in name or "threaded" in name]
    again, _ = cold(tmp_path)
    assert "False" not in again
    assert "[]" in again.split("]")[1] + "]"
    assert len(list(tmp_path.rglob("*.nbc"))) <= 32


def test_two_kinds_of_processor_share_a_folder(tmp_path):
    """A home that two machines have in common: each finds its own kernels, however often they take turns."""
    other = {"NUMBA_CPU_NAME": "x86-64-v2", "NUMBA_CPU_FEATURES": ""} if os.uname().machine == "x86_64" else {}
    assert run("", tmp_path).stdout == "[False]\n"
    assert run("", tmp_path, **other).stdout == ("[False]\n" if other else "[True]\n")
    for _ in range(2):
        assert run("", tmp_path).stdout == "[True]\n"
        assert run("", tmp_path, **other).stdout == "[True]\n"


def test_who_may_not_write_the_package_has_a_folder_of_its_own(tmp_path):
    """As after an installation by root: in the user's cache folder, where the next process finds it."""
    code = (
        "import os\n"
        "del os.environ['NUMBA_CACHE_DIR']\n"
        "from numba.core import caching, config\n"
        "config.CACHE_DIR = ''\n"
        "ensure = caching._CacheLocator.ensure_cache_path\n"
        "def refuse(self):\n"
        "    if self.get_cache_path().endswith('__pycache__'):\n"
        "        raise OSError(30, 'Read-only file system')\n"
        "    ensure(self)\n"
        "caching._CacheLocator.ensure_cache_path = refuse\n"
    )
    for found in ("[False]\n", "[True]\n"):
        done = run(code, tmp_path, HOME=str(tmp_path), XDG_CACHE_HOME=str(tmp_path / "cache"))
        assert (done.stdout, done.stderr) == (found, "")
    assert list((tmp_path / "cache").rglob("*.nbc"))


def test_two_processes_never_write_the_same_file():
    """Numba numbers what one function is compiled to from what it has read of the index, which two may do at once."""
    code = "from tapeless.kernels.cpu.cache import _name_of_own; print(_name_of_own('a.nbi', 1))"
    names = {subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout for _ in range(2)}
    assert len(names) == 2
    assert all(name.startswith("a.1-") and name.endswith(".nbc\n") for name in names)

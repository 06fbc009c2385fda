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
    "from tapeless.kernels.cpu.compile import compiled\n"
    "print([entry.cached for entry in compiled])\n"
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
    assert len(files) == 2
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

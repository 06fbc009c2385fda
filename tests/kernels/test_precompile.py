"""Other processes that compile a share of the kernels: whatever becomes of them, the model is made."""

import os
import subprocess
import sys

import pytest

from tapeless.kernels.cpu import dispatch

CODE = """
import sys
import numpy as np
from tapeless.kernels.cpu import functions, precompile
from tapeless.ops.relu import cpu as relu
from tapeless.ops.zero import cpu as zero
precompile.FEWEST, precompile.PATIENCE, sys.executable = 1, 1, {executable!r}
x = np.arange(-2, 2, dtype=np.float32)
y, dx = np.ones_like(x), np.ones_like(x)
bound = precompile.compile_all(lambda: [*relu.forward(y, x), *relu.backward(dx, x, x), *zero.forward(x)])
for run in bound:
    run()
assert y.tolist() == dx.tolist() == [0, 0, 0, 1] and not x.any()
print(sum(not each.cached for each in functions.compilations if each.kernel.startswith(("relu", "zero"))))
"""


def compiled_here(tmp_path, executable):
    """How many kernels the process compiled itself that had this program as its `sys.executable`."""
    path = os.pathsep.join(each for each in sys.path if each)
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, "-P", "-c", CODE.format(executable=str(executable))],
        capture_output=True,
        text=True,
        env=environment,
        cwd=tmp_path,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def script(path, text):
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)
    return path


@pytest.mark.skipif(dispatch.cores() < 2, reason="needs two cores")
@pytest.mark.parametrize(
    "text",
    [
        "#!/bin/sh\nexit 1\n",
        "#!/bin/sh\nexec sleep 1000\n",
        "#!/bin/sh\necho ready\nexec sleep 1000\n",
        "#!/bin/sh\necho ready; while read line; do echo done; done\n",
    ],
    ids=["it fails", "it never begins", "it never answers", "it lies"],
)
def test_a_process_that_does_not_compile(tmp_path, text):
    assert compiled_here(tmp_path, script(tmp_path / "python-of-sorts", text)) == 3


@pytest.mark.skipif(dispatch.cores() < 2, reason="needs two cores")
def test_no_other_program_is_started(tmp_path):
    """`sys.executable` of an application is the application; and a folder's own json.py is not ours."""
    wrong = script(tmp_path / "application", f"#!/bin/sh\ntouch {tmp_path / 'started'}\n")
    (tmp_path / "json.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'w')\n", encoding="utf-8")
    assert compiled_here(tmp_path, wrong) == 3
    assert not (tmp_path / "started").exists()
    compiled_here(tmp_path, sys.executable)
    assert not (tmp_path / "imported").exists()

"""Other processes that compile a share of the kernels: whatever becomes of them, the model is made."""

import os
import subprocess
import sys

import pytest
from numba import intp, types

from tapeless.errors import TapelessError
from tapeless.kernels.cpu import dispatch, precompile
from tapeless.kernels.cpu.compile import Kernel
from tapeless.kernels.cpu.functions import CFunction, collecting
from tapeless.kernels.cpu.vector import exp

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


def short(x):
    x[0] = 1.0


def long(x):
    x[0] = exp(x[0])


class Compilation:
    """Stands for a kernel, and notes when it is compiled."""

    def __init__(self, function, order):
        self.function, self.compiled_for = function, lambda kinds: order.append(function.__name__)


def test_what_takes_longest_is_compiled_first(monkeypatch):
    """With all that it inlines: else one process would be left alone with it at the end."""
    order: list[str] = []
    monkeypatch.setattr(precompile, "_interpreter", lambda: None)
    precompile._compile([(Compilation(each, order), ()) for each in (short, long)])
    assert order == ["long", "short"]


def test_a_helper_is_compiled_as_a_part_of_its_kernels_alone():
    Kernel(long).compiled_for((types.Array(types.float32, 1, "C"), intp))
    for result in exp.overloads.values():
        assert result.library.get_pointer_to_function(result.fndesc.llvm_func_name) == 0


def seven(place):
    place[0] = 7


def test_a_function_without_its_machine_code_waits_for_the_others():
    function = CFunction(seven, types.void(types.CPointer(types.int64)))
    with collecting() as missing:
        assert function.address == 0
        with pytest.raises(TapelessError, match="only been asked for"):
            function.ctypes()
    assert list(missing) == [(function, ())]

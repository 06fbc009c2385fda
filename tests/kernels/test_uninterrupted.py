"""What must not be cut by an interrupt, and not be going on while a process forks."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from tapeless.kernels.cpu import uninterrupted as module
from tapeless.kernels.cpu.uninterrupted import uninterrupted


def test_an_interrupt_waits_for_the_end_of_the_work():
    seen = []

    def work():
        signal.raise_signal(signal.SIGINT)
        seen.append(threading.current_thread() is threading.main_thread())
        return "done"

    with pytest.raises(KeyboardInterrupt):
        uninterrupted(work)
    assert seen == [False]
    assert uninterrupted(lambda: 3) == 3


def test_what_the_work_raises_is_raised():
    with pytest.raises(ZeroDivisionError):
        uninterrupted(lambda: 1 // 0)


def test_a_fork_waits_for_the_end_of_the_work():
    """Or the child would have the compiler's lock taken, and no thread that gives it back."""
    begun, go_on = threading.Event(), threading.Event()
    events: list[object] = []

    def work():
        begun.set()
        go_on.wait(20)
        events.append("worked")

    def fork():
        child = os.fork()
        if child == 0:
            os._exit(0 if events == ["worked"] and uninterrupted(lambda: True) else 1)
        events.append(os.waitpid(child, 0)[1])

    threads = [threading.Thread(target=uninterrupted, args=(work,)), threading.Thread(target=fork)]
    threads[0].start()
    begun.wait(20)
    threads[1].start()
    go_on.set()
    for thread in threads:
        thread.join()
    assert events == ["worked", 0]
    assert module._working.acquire(blocking=False)
    module._working.release()


def test_nothing_is_compiled_where_an_interrupt_can_cut(tmp_path):
    """Whatever of Numba's compiler and of LLVM is entered is entered on another thread than the one that is
    interrupted: left in the middle, their locks stay taken for ever."""
    code = (
        "import threading, tapeless, numpy as np\n"
        "from tapeless.kernels.cpu import dispatch\n"
        "dispatch.set_gemm_library('own')\n"
        "dispatch.set_threads(1)\n"
        "from numba.core import compiler_lock\n"
        "found, acquire = set(), compiler_lock._CompilerLock.acquire\n"
        "def noted(self):\n"
        "    found.add(threading.current_thread() is threading.main_thread())\n"
        "    acquire(self)\n"
        "compiler_lock._CompilerLock.acquire = noted\n"
        "model = tapeless.Model('ops-102k', batch=2, layers=1)\n"
        "for _ in range(4):\n"
        "    model.step(np.zeros((2, model.time), int), np.zeros(2, int), lr=0.1)\n"
        "print(found)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "{False}\n", done.stderr


def test_interrupts_forks_threads_and_compiling():
    """A few of those that `make interrupts` has a thousand of."""
    command = [sys.executable, "-m", "tests.kernels.interrupting", "12", "0"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout == "12 interrupts, 3 forks, 6 threads: no wrong number\n"

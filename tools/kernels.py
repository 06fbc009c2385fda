"""python -m tools.kernels: compiles what the tests will want, each kernel once, on every core.

The workers of the suite come to the same kernels at about the same time, and each would compile them for itself. Here
each process takes its share of them by name; what it compiles is kept on disk, where the workers find it.
"""

from __future__ import annotations

import os
import sys
from typing import Any
from zlib import crc32


def main() -> int:
    if len(sys.argv) == 3:
        compile_share(*map(int, sys.argv[1:]))
        return 0
    print("compiling the kernels that the tests will want: about a minute", flush=True)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    shares = [
        os.spawnv(os.P_NOWAIT, sys.executable, [sys.executable, "-m", "tools.kernels", str(share), str(cores)])
        for share in range(cores)
    ]
    ends = [os.waitpid(each, 0)[1] for each in shares]
    return int(any(ends))


def compile_share(share: int, of: int) -> None:
    from tests.backends.test_bfloat16 import ON_CPU

    from tapeless.backends.cpu import CPU
    from tapeless.check.configurations import CONFIGURATIONS, LARGER
    from tapeless.check.ops import check_backend_alone
    from tapeless.kernels import cpu as cpu_kernels
    from tapeless.kernels.cpu import Kernel
    from tapeless.ops import OPS

    cpu_kernels.compile_all = lambda bind: bind()  # the kernels are shared out here already
    bind = Kernel.bind

    def mine(kernel: Kernel, size: int, *arguments: Any, **options: Any) -> Any:
        function = kernel.function
        if crc32(f"{function.__module__}.{function.__name__}".encode()) % of == share:
            return bind(kernel, size, *arguments, **options)
        return lambda: None

    Kernel.bind = mine  # type: ignore[method-assign,assignment]
    for configuration in CONFIGURATIONS:
        cpu_kernels.set_threads(1)
        bind_all(configuration, "float32")
        if configuration.name in (*ON_CPU, "gpt2-4x256") and "bfloat16" in CPU.traits.precisions:
            bind_all(configuration, "bfloat16")
    for name in OPS:  # the longest tests, which begin at the same time, all have each op by itself
        list(check_backend_alone(name, CPU))
    for configuration in LARGER:
        cpu_kernels.set_threads(2)
        bind_all(configuration, "float32")


def bind_all(configuration: Any, precision: str) -> None:
    from tapeless import Model
    from tapeless.backends.backend import bind_call
    from tapeless.backends.cpu import CPU

    made = {"batch": configuration.batch, "time": configuration.time, **configuration.fields}
    model = Model(configuration.preset, backend="cpu", precision=precision, **made)
    for call in model.program.calls:
        bind_call(call, model.engine.arguments(call), CPU)


if __name__ == "__main__":
    sys.exit(main())

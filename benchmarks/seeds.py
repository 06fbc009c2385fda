"""`python benchmarks/seeds.py [--seeds 20]`: how often the default training is right in the end, seed by seed.

Each is `tapeless train --seed N --set products=own|mkl --threads 1`, in this process. What stands in
docs/kills.md is what this prints; three minutes of processor time.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from tapeless.backends.backend import backend_named, gemm_library, thread_count
from tapeless.kernels import cpu as cpu_kernels
from tapeless.train.loop import Evaluated, Event
from tapeless.train.session import start
from tapeless.train.settings import Request, Settings

RIGHT = 0.999  # of what is held out, in the end and by the best checkpoint


def trained(folder: Path, seed: int, products: str) -> tuple[float, float]:
    """How much of what is held out is right: in the end, and by the best checkpoint."""
    session = start(Request("ops-102k", {}, Settings(seed=seed, products=products, threads=1)), folder)
    seen: list[Event] = []
    session.train(seen.append)
    judged = [event for event in seen if isinstance(event, Evaluated)]
    best = [event for event in judged if event.best][-1]
    return judged[-1].measured.accuracy or 0.0, best.measured.accuracy or 0.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    options = parser.parse_args()
    thread_count(backend_named("cpu"), 1)
    missed = 0
    for products in cpu_kernels.GEMM_LIBRARIES if cpu_kernels.mkl() else ("own",):
        gemm_library(backend_named("cpu"), products)
        last, best, begun = [], [], time.process_time()
        with tempfile.TemporaryDirectory() as folder:
            for seed in range(options.seeds):
                for found, share in zip((last, best), trained(Path(folder, str(seed)), seed, products), strict=True):
                    found.append(share)
                print(f"  {products}, seed {seed}: {last[-1]:.2%}, the best checkpoint {best[-1]:.2%}", flush=True)
        seconds = (time.process_time() - begun) / options.seeds
        below = sum(share < RIGHT for share in (*last, *best))
        missed += below
        whole = sum(each == 1 for each in last)
        print(
            f"{products}: {len(last)} seeds end at {min(last):.1%} to {max(last):.1%}, {whole} at 100 %; "
            f"by the best checkpoint from {min(best):.1%}; {below} below {RIGHT:.1%}; each {seconds:.1f} s of CPU time"
        )
    return int(missed > 0)


if __name__ == "__main__":
    raise SystemExit(main())

"""`tapeless about`"""

from __future__ import annotations

from rich.markup import escape

from tapeless.bench.environment import environment
from tapeless.cli.common import Json, console, print_json, size, table


def about(json: Json = False) -> None:
    """Describe this installation in one paste: version, packages, processor, BLAS, threads, GPU, cache.

    Example: tapeless about --json
    """
    found = environment()
    if json:
        print_json(found)
        return
    memory = found["memory_bytes"]
    packages = [f"{name} {version}" for name, version in found["packages"].items() if version]
    absent = [name for name, version in found["packages"].items() if not version]
    rows = {
        "tapeless": found["tapeless"],
        "python": found["python"],
        "system": found["system"],
        "processor": f"{found['processor']}, {found['cores']} cores" + (f", {size(memory)}" if memory else ""),
        "features": ", ".join(found["features"]) or "not known",
        "gpu": "; ".join(found["gpu"]) or "none",
        "products": f"{found['blas']} on {found['threads']} threads" if found["blas"] else found["missing"],
        "packages": ", ".join(packages),
        "not installed": ", ".join(absent),
        "compiled kernels": found["cache"] or "kept nowhere: no folder can be written",
    }
    console.print(table(("<", ""), [(f"[dim]{name}", escape(value)) for name, value in rows.items() if value]))

"""What the package may grow to: `tools/budget.toml`, what there is, and sentences about what is above it.

`python -m tools.budget` prints what there is beside the budget; `--lower` lowers the budget to what there is. Raising
it is done by hand, with a decision that says what was removed instead.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PACKAGE, BUDGET = ROOT / "src/tapeless", ROOT / "tools/budget.toml"
Numbers = dict[str, dict[str, int]]
UNITS = {
    "lines": "lines of Python",
    "options": "options",
    "members": "members",
    "modules": "modules loaded",
    "loaded": "lines loaded",
}
# What is loaded, counted in a process of its own. A folder without code in it is no module.
LOADED = """
import io, sys
from contextlib import redirect_stdout
from pathlib import Path
words = sys.argv[1:]
import tapeless
if words:
    from tapeless.cli import main
    sys.argv = ["tapeless", *words]
    with redirect_stdout(io.StringIO()):
        try:
            main()
        except SystemExit as ended:
            assert not ended.code, ended.code
files = [module.__file__ for name, module in sys.modules.items() if name.split(".")[0] == "tapeless"]
lines = [count for file in files if (count := len(Path(file).read_text("utf-8").splitlines()))]
print(len(lines), sum(lines))
"""
STARTS = {
    "import tapeless": (),
    "presets": ("presets",),
    "explain": ("explain", "gpt2-4x256"),
    "plan": ("plan", "gpt2-4x256", "--memory", "1MB"),
}


def counted() -> Numbers:
    """What there is."""
    started = {name: loaded(*words) for name, words in STARTS.items()}
    return {
        "lines": lines(),
        "options": options(),
        "members": {"Backend": backend_members()},
        "modules": {name: modules for name, (modules, _) in started.items()},
        "loaded": {name: count for name, (_, count) in started.items()},
    }


def lines() -> dict[str, int]:
    """Lines of Python per package; modules beside the packages together."""
    found: dict[str, int] = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE).parts
        name = parts[0] if len(parts) > 1 else "tapeless"
        found[name] = found.get(name, 0) + len(path.read_text("utf-8").splitlines())
    return dict(sorted(found.items())) | {"all": sum(found.values())}


def options() -> dict[str, int]:
    """Options per command; of a group of commands, of each."""
    import typer

    from tapeless.cli.app import app

    found: dict[str, int] = {}

    def count(name: str, command: Any) -> None:
        for inner, each in getattr(command, "commands", {}).items():
            count(f"{name} {inner}".strip(), each)
        if not hasattr(command, "commands"):
            context = typer.Context(command, info_name=name)
            found[name] = sum(each.param_type_name == "option" for each in command.get_params(context))

    count("", typer.main.get_command(app))
    return dict(sorted(found.items()))


def backend_members() -> int:
    """What a backend has to have: names of the protocol."""
    from tapeless.backends.backend import Backend

    return sum(not name.startswith("_") for name in vars(Backend))


def loaded(*words: str) -> tuple[int, int]:
    """Modules and lines of the package that a command loads; without words, those of `import tapeless`."""
    done = subprocess.run([sys.executable, "-c", LOADED, *words], capture_output=True, text=True, check=True)
    modules, count = done.stdout.split()
    return int(modules), int(count)


def read_budget() -> Numbers:
    found: Numbers = tomllib.loads(BUDGET.read_text("utf-8"))
    return found


def exceeded(budget: Mapping[str, Mapping[str, int]], there: Mapping[str, Mapping[str, int]]) -> list[str]:
    """A sentence for each number above its budget, and for what has none."""
    sentences = []
    for kind, numbers in there.items():
        for name, number in numbers.items():
            most = budget.get(kind, {}).get(name)
            if most is None:
                sentences.append(f"{name} has {number:,} {UNITS[kind]} and no budget: write one in tools/budget.toml.")
            elif number > most:
                sentences.append(
                    f"{name} has {number:,} {UNITS[kind]}, the budget is {most:,}: lower it, or raise the budget with "
                    f"a decision that says what was removed instead."
                )
        for name in sorted(budget.get(kind, {}).keys() - numbers.keys()):
            sentences.append(f"tools/budget.toml has {UNITS[kind]} of {name}, which is gone: make budget takes it out.")
    return sentences


def lowered(budget: Mapping[str, Mapping[str, int]], there: Numbers) -> Numbers:
    """The budget without what is gone, and nowhere above what there is; what is above its budget stays so."""
    return {
        kind: {name: min(number, budget.get(kind, {}).get(name, number)) for name, number in numbers.items()}
        for kind, numbers in there.items()
    }


def as_toml(budget: Numbers) -> str:
    """The file, with what it is for at its head."""
    said = "# The most that there may be of each; `make budget` lowers it to what there is. Raising a number takes a\n"
    said += "# decision (docs/decisions) that says what was removed instead.\n"
    for kind, numbers in budget.items():
        said += f"\n[{kind}] # {UNITS[kind]}\n"
        said += "".join(f"{_key(name)} = {number}\n" for name, number in numbers.items())
    return said


def _key(name: str) -> str:
    return name if name.isidentifier() else f'"{name}"'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lower", action="store_true", help="lower the budget to what there is")
    there, budget = counted(), read_budget() if BUDGET.exists() else {}
    if parser.parse_args().lower:
        budget = lowered(budget, there)
        BUDGET.write_text(as_toml(budget), encoding="utf-8")
    for kind, numbers in there.items():
        for name, number in numbers.items():
            print(f"{name:24} {number:8,} of {budget.get(kind, {}).get(name, 0):8,} {UNITS[kind]}")
    if sentences := exceeded(budget, there):
        sys.exit("\n".join(sentences))


if __name__ == "__main__":
    main()

"""Questions and answers made of the docstrings of Python's standard library, as conversations for `--data`:
`python benchmarks/docstrings.py TOKENS FOLDER` makes FOLDER/chats.jsonl and FOLDER/held-out.jsonl.

Each module stands whole on one side, that on which the tokens of its text stand (documents.jsonl of `tapeless
tokenize`), so that whoever trained on the one side has read nothing of the other. An answer that also occurs on the
training side is left out of what is held out.
"""

from __future__ import annotations

import argparse
import ast
import json
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(sysconfig.get_path("stdlib"))
Asked = dict[str, str]  # prompt, completion
SHORTEST, LONGEST = 15, 200  # characters of an answer
LONGEST_SIGNATURE = 60
Described = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def write_chats(documents: Path, root: Path, folder: Path) -> dict[str, int]:
    """How many conversations and modules each of the two files holds."""
    files: dict[str, list[Path]] = {"training": [], "validation": []}
    for line in documents.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if not _left_out(Path(row["file"]).relative_to(root)):
            files[row["split"]].append(Path(row["file"]))
    known: set[str] = set()
    counts = {}
    for split, out in (("training", "chats.jsonl"), ("validation", "held-out.jsonl")):
        told, modules, seen = [], set[Path](), set[str]()
        for path in files[split]:
            for row in asked_of(path, root):
                if row["prompt"] not in seen and row["completion"] not in known:
                    seen.add(row["prompt"])
                    told.append(row)
                    modules.add(path)
        known = {row["completion"] for row in told}
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in told)
        (folder / out).write_text(lines, encoding="utf-8")
        counts |= {f"{split} conversations": len(told), f"{split} modules": len(modules)}
    return counts


def _left_out(path: Path) -> bool:
    """Tests, and tables of characters, whose docstrings a program wrote: one that is held out would be no riddle."""
    return any("test" in part or part == "encodings" for part in path.parts)


def asked_of(path: Path, root: Path) -> Iterator[Asked]:
    """What a module's docstrings answer, in the order of its text; of what is private, nothing."""
    name = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of old escapes in strings
        module = ast.parse(path.read_bytes())
    if any(part.startswith("_") for part in name.split(".")):
        return
    if answer := _summary(module):
        yield {"prompt": f"What is the module {name} for?", "completion": answer}
    yield from _asked_within(module, name, method=False)


def _asked_within(parent: ast.Module | ast.ClassDef, name: str, method: bool) -> Iterator[Asked]:
    for node in parent.body:
        if not isinstance(node, Described) or node.name.startswith("_"):
            continue
        full = f"{name}.{node.name}"
        answer = _summary(node)
        if isinstance(node, ast.ClassDef):
            if answer:
                yield {"prompt": f"What is the class {full} for?", "completion": answer}
            yield from _asked_within(node, full, method=True)
        elif answer:
            signature = ast.unparse(node.args)
            if method:
                signature = signature.partition(", ")[2]
            if len(signature) <= LONGEST_SIGNATURE:
                yield {"prompt": f"What does {full}({signature}) do?", "completion": answer}


def _summary(node: ast.Module | Described) -> str | None:
    """The first paragraph of a docstring on one line, where it is words and neither long nor a signature."""
    words = " ".join((ast.get_docstring(node) or "").partition("\n\n")[0].split())
    unfit = not SHORTEST <= len(words) <= LONGEST or "->" in words or ">>>" in words or "(" in words.split()[0]
    return None if unfit or not words[0].isupper() else words


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tokens", type=Path, help="what `tapeless tokenize stdlib` made")
    parser.add_argument("folder", type=Path, help="where the two files are written")
    given = parser.parse_args()
    for what, count in write_chats(given.tokens / "documents.jsonl", ROOT, given.folder).items():
        print(f"{count:,} {what}")


if __name__ == "__main__":
    main()

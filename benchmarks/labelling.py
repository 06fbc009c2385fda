"""`make labelling FASTA=… GFF=…`: how well the labeller does on a real genome, with everything at its default.

Trains `tapeless label train --feature CDS --validation 0.2` with the seeds 0, 1 and 2 and writes what came out into
docs/labelling.md, between its markers. The genome stays outside the repository.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from datetime import date
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Any

from tapeless.errors import TapelessError
from tapeless.labelling.genome.fasta import read_lengths

DOCS = Path(__file__).parents[1] / "docs" / "labelling.md"
BEGIN, END = "<!-- make labelling: begin -->", "<!-- make labelling: end -->"
SEEDS = (0, 1, 2)
FEATURE, VALIDATION = "CDS", "0.2"


def trained(fasta: Path, gff: Path, seed: int, folder: Path) -> dict[str, Any]:
    """What `--json` said of this seed."""
    words = ["label", "train", "--fasta", fasta, "--gff", gff, "--feature", FEATURE, "--validation", VALIDATION]
    words += ["--seed", seed, "--out", folder / f"seed-{seed}", "--json"]
    print(f"seed {seed} …", flush=True)
    ran = subprocess.run([sys.executable, "-m", "tapeless", *map(str, words)], stdout=subprocess.PIPE, check=False)
    if ran.returncode:
        sys.exit(ran.returncode)  # it has said why
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


def table(runs: dict[int, dict[str, Any]]) -> str:
    def row(name: str, found: dict[str, Any], *more: str) -> str:
        shares = [f"{found[key]:.4f}" if found[key] is not None else "–" for key in ("precision", "recall", "f1")]
        return f"| {name} | {' | '.join([*shares, *more])} |"

    lines = [
        "| on the held-out fifth | precision | recall | F1 | average precision | seconds |",
        "|---|---|---|---|---|---|",
    ]
    first = next(iter(runs.values()))
    for name, found in first["baselines"].items():
        lines.append(row(f"{name}, bases in {FEATURE}", found, "–", "–"))
    for seed, run in runs.items():
        more = f"{run['average_precision']:.4f}", f"{run['seconds']:.0f}"
        lines.append(row(f"model, seed {seed}, bases in {FEATURE}", run["classes"][1], *more))
    for seed, run in runs.items():
        half = run["stretches"]["both"]["half"]
        lines.append(row(f"model, seed {seed}, {FEATURE} with half in common", half, "–", "–"))
    return "\n".join(lines)


def section(fasta: Path, runs: dict[int, dict[str, Any]]) -> str:
    lengths = read_lengths(fasta)
    today = date.today()
    name = next(iter(lengths)) + (f" and {len(lengths) - 1} more" if len(lengths) > 1 else "")
    own = {seed: run["classes"][1]["f1"] or 0.0 for seed, run in runs.items()}
    f1 = mean(own.values())
    first = next(iter(runs.values()))
    verdict = ""
    for rule, found in first["baselines"].items():
        worse = [str(seed) for seed, reached in own.items() if reached <= found["f1"]]
        if worse:
            verdict += f" No better than {rule}: seed {', '.join(worse)}."
    shortest = first["shortest_open_frame"]
    return (
        f"{today.day} {today:%B %Y}, `make labelling` on {name} ({sum(lengths.values()):,} bases), defaults, "
        f"`--feature {FEATURE} --validation {VALIDATION}`; mean F1 per base {f1:.4f}; open frames from "
        f"{shortest} bases on.{verdict}\n\n{table(runs)}"
    )


def write(path: Path, text: str) -> None:
    """Between the markers, whatever stood there."""
    content = path.read_text(encoding="utf-8")
    before, found, rest = content.partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not (found and ended):
        sys.exit(f"{path} has no {BEGIN} … {END}: put both back where the figures belong.")
    path.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fasta", default="", help="a genome")
    parser.add_argument("--gff", default="", help="its annotation, with CDS")
    given = parser.parse_args()
    if not (given.fasta and given.gff):
        sys.exit("name a genome and its annotation: make labelling FASTA=genome.fa GFF=genes.gff3")
    fasta, gff = Path(given.fasta), Path(given.gff)
    with TemporaryDirectory() as folder:
        text = section(fasta, {seed: trained(fasta, gff, seed, Path(folder)) for seed in SEEDS})
    write(DOCS, text)
    print(text)


if __name__ == "__main__":
    try:
        main()
    except TapelessError as error:
        sys.exit(str(error))

"""`make labelling FASTA=… GFF=…`: how well the labeller does on a real genome, with everything at its default.

Trains `tapeless label train --feature CDS --validation 0.2` with the seeds 0, 1 and 2 and writes what came out into
docs/labelling.md, between its markers. The genome stays outside the repository. `--augustus` trains AUGUSTUS
(https://github.com/Gaius-Augustus/Augustus; Debian's package `augustus`) on the same genes and prints its scores.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tapeless.errors import TapelessError
from tapeless.labelling.genome.fasta import read_lengths
from tapeless.labelling.genome.gff import read_annotation
from tapeless.labelling.genome.scores import of_genes
from tapeless.labelling.scores import truth_of
from tapeless.labelling.source import LabelledSequence, make_source, read_data

DOCS = Path(__file__).parents[1] / "docs" / "labelling.md"
BEGIN, END = "<!-- make labelling: begin -->", "<!-- make labelling: end -->"
SEEDS = (0, 1, 2)
FEATURE, VALIDATION = "CDS", 0.2
SPECIES = "saccharomyces_cerevisiae_S288C"  # whose settings AUGUSTUS keeps; all that it counts is learned anew
FLANK = 500  # bases beside a gene that AUGUSTUS learns from
KINDS = ("bases", "exact", "genes")


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


def row(name: str, found: dict[str, Any], more: str = "–") -> str:
    exact = found["exact"]
    shares = " | ".join(f"{found[kind]['f1']:.4f}" for kind in KINDS)
    return f"| {name} | {shares} | {exact['right']} of {exact['true']}, {exact['predicted']} found | {more} |"


def table(runs: dict[int, dict[str, Any]]) -> str:
    lines = ["| on the held-out fifth | F1 per base | exact CDS, F1 | whole genes, F1 | exact CDS | seconds |"]
    lines.append("|---|---|---|---|---|---|")
    first = next(iter(runs.values()))
    lines += [row(name, found) for name, found in first["baselines"].items()]
    lines += [row(f"model, seed {seed}", run, f"{run['seconds']:.0f}") for seed, run in runs.items()]
    return "\n".join(lines)


def section(fasta: Path, runs: dict[int, dict[str, Any]]) -> str:
    lengths = read_lengths(fasta)
    today = date.today()
    name = next(iter(lengths)) + (f" and {len(lengths) - 1} more" if len(lengths) > 1 else "")
    worse = [str(seed) for seed, run in runs.items() if not run["better_than_baselines"]]
    verdict = f" No better than a rule: seed {', '.join(worse)}." if worse else ""
    return (
        f"{today.day} {today:%B %Y}, `make labelling` on {name} ({sum(lengths.values()):,} bases), defaults, "
        f"`--feature {FEATURE} --validation {VALIDATION}`. The rules are those of seed {min(runs)}.{verdict}"
        f"\n\n{table(runs)}"
    )


def write(path: Path, text: str) -> None:
    """Between the markers, whatever stood there."""
    content = path.read_text(encoding="utf-8")
    before, found, rest = content.partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not (found and ended):
        sys.exit(f"{path} has no {BEGIN} … {END}: put both back where the figures belong.")
    path.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", encoding="utf-8")


def genbank(part: LabelledSequence) -> str:
    """The genes of a part with what surrounds them, as AUGUSTUS' etraining reads them."""
    records = []
    genes = sorted(part.genes, key=lambda gene: gene.left)
    for number, gene in enumerate(genes):
        before = max((other.right for other in genes[:number]), default=0)  # what lies beside a gene is no gene
        behind = min((other.left for other in genes[number + 1 :]), default=len(part.bases))
        first, last = max(before, gene.left - FLANK, 0), min(behind, gene.right + FLANK)
        if not (gene.has_start and gene.has_stop and first <= gene.left and gene.right <= last):
            continue
        spans = ",".join(f"{start - first + 1}..{end - first}" for start, end in gene.exons)
        where = f"join({spans})" if len(gene.exons) > 1 else spans
        where = where if gene.strand == "+" else f"complement({where})"
        letters = part.bases[first:last].tobytes().decode().lower()
        lines = [
            f"LOCUS       {part.name}_{number}   {len(letters)} bp  DNA",
            "FEATURES             Location/Qualifiers",
        ]
        lines += [f"     source          1..{len(letters)}", f"     CDS             {where}", "ORIGIN"]
        lines += [f"{at + 1:9d} {letters[at : at + 60]}" for at in range(0, len(letters), 60)]
        records.append("\n".join([*lines, "//"]))
    return "\n".join(records) + "\n"


def augustus(fasta: Path, gff: Path, folder: Path) -> dict[str, Any]:
    """Trained on the genes that we train on, and scored on the same held-out part."""
    if not (shutil.which("augustus") and shutil.which("etraining")):
        sys.exit("there is no augustus here: apt install augustus augustus-data.")
    data = read_data(make_source(fasta=[fasta], gff=[gff], feature=FEATURE), VALIDATION)
    config = folder / "config"
    given = Path(os.environ.get("AUGUSTUS_CONFIG_PATH", "/usr/share/augustus/config"))
    others = [path.name for path in (given / "species").iterdir() if path.name not in ("generic", SPECIES)]
    shutil.copytree(given, config, ignore=lambda here, _: others if Path(here).name == "species" else [])
    parameters = config / "species" / SPECIES / f"{SPECIES}_parameters.cfg"
    changed = re.sub(r"(?m)^(stopCodonExcludedFromCDS\s+)\w+", r"\1false", parameters.read_text())
    parameters.write_text(changed)
    (folder / "genes.gb").write_text("".join(map(genbank, data.training_parts)))
    environment = {**os.environ, "AUGUSTUS_CONFIG_PATH": str(config)}
    subprocess.run(["etraining", f"--species={SPECIES}", folder / "genes.gb"], env=environment, check=True, stdout=-3)
    total = None
    for part in data.parts:
        (folder / "held-out.fa").write_text(f">{part.name}\n{part.bases.tobytes().decode()}\n")
        words = ["augustus", f"--species={SPECIES}", "--gff3=on", "--genemodel=partial", str(folder / "held-out.fa")]
        said = subprocess.run(words, env=environment, check=True, capture_output=True, text=True).stdout
        (folder / "found.gff3").write_text(said)
        found = read_annotation(folder / "found.gff3", {part.name: len(part.bases)}, FEATURE).genes.get(part.name, ())
        here = of_genes(truth_of(part, FEATURE), found)
        total = here if total is None else total + here
    assert total is not None
    return total.document()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fasta", default="", help="a genome")
    parser.add_argument("--gff", default="", help="its annotation, with CDS")
    parser.add_argument("--augustus", action="store_true", help="score AUGUSTUS instead, trained on the same genes")
    given = parser.parse_args()
    if not (given.fasta and given.gff):
        sys.exit("name a genome and its annotation: make labelling FASTA=genome.fa GFF=genes.gff3")
    fasta, gff = Path(given.fasta), Path(given.gff)
    with TemporaryDirectory() as folder:
        if given.augustus:
            print(row("AUGUSTUS", augustus(fasta, gff, Path(folder))))
            return
        text = section(fasta, {seed: trained(fasta, gff, seed, Path(folder)) for seed in SEEDS})
    write(DOCS, text)
    print(text)


if __name__ == "__main__":
    try:
        main()
    except TapelessError as error:
        sys.exit(str(error))

"""Files made to fill a memory: streamed, and refused while they are small."""

import gzip
import subprocess
import sys

import pytest

from tapeless.errors import TapelessError
from tapeless.labelling.genome.fasta import read_lengths
from tapeless.labelling.genome.gff import read_annotation
from tapeless.labelling.genome.text import LONGEST_LINE

LENGTHS = {"chr1": 100}
LINE = b"chr1\tx\texon\t3\t12\t.\t+\t.\tID=%s\n"


def write_bomb(path, begin):
    """1 GB of one letter in 1 MB of gzip: a block, packed once and repeated."""
    path.write_bytes(gzip.compress(begin) + 64 * gzip.compress(b"A" * (1 << 24), 6))
    assert path.stat().st_size < 2 << 20


CODE = """
import resource, sys
from pathlib import Path
from tapeless.errors import TapelessError
from tapeless.labelling.genome.fasta import read_lengths
from tapeless.labelling.genome.gff import read_annotation
path, which = Path(sys.argv[1]), sys.argv[2]
begin = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    read_lengths(path) if which == "fasta" else read_annotation(path, {"chr1": 100}, "exon")
except TapelessError as error:
    print(error)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - begin)
"""


@pytest.mark.parametrize(
    ("which", "begin", "wanted"),
    [
        ("fasta", b">chr1\n", "unpacks to more than 100 times its size, which hardly any text does"),
        ("gff", b"##gff-version 3\n", "line 2: it is longer than"),
    ],
)
def test_a_file_that_grows_a_thousandfold_is_refused_in_little_memory(which, begin, wanted, tmp_path):
    write_bomb(tmp_path / "bomb.gz", begin)
    words = [sys.executable, "-c", CODE, str(tmp_path / "bomb.gz"), which]
    said = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()
    assert wanted in said[0]
    assert int(said[1]) < 400 * 1024  # KiB; all of it would be a million


def test_repeats_that_shrink_well_are_read(tmp_path):
    with gzip.open(tmp_path / "genome.fa.gz", "wb") as file:
        file.write(b">chr1\n" + b"ACGT" * (1 << 20))
    assert read_lengths(tmp_path / "genome.fa.gz") == {"chr1": 4 << 20}


def test_a_line_without_an_end(tmp_path):
    path = tmp_path / "genes.gff"
    path.write_bytes(LINE % b"a" + LINE % (b"b" * LONGEST_LINE))
    with pytest.raises(TapelessError, match="line 2: it is longer than 1,048,576 characters"):
        read_annotation(path, LENGTHS)
    path.write_bytes(LINE % (b"b" * (LONGEST_LINE - 100)))
    assert len(read_annotation(path, LENGTHS).intervals["chr1", "+"]) == 1


def test_a_header_without_an_end_is_not_taken_for_bases(tmp_path):
    path = tmp_path / "genome.fa"
    path.write_bytes(b">chr1 " + b"A" * (1 << 20) + b"\nACGT\n")
    with pytest.raises(TapelessError, match="a header of more than 1,048,576 characters"):
        read_lengths(path)
    path.write_bytes(b">" + b"A" * 1001 + b"\nACGT\n")
    with pytest.raises(TapelessError, match="a name of 1,001 characters"):
        read_lengths(path)


@pytest.mark.parametrize(
    "text",
    [
        b"##gff-version " + b"9" * 9000,
        LINE.replace(b"+", b"+" * 9000),
        LINE.replace(b"chr1", b"c" * 9000),
        LINE.replace(b"exon", b"e" * 9000),
    ],
)
def test_a_sentence_does_not_repeat_all_that_it_refuses(text, tmp_path):
    (tmp_path / "genes.gff").write_bytes(text)
    with pytest.raises(TapelessError) as caught:
        read_annotation(tmp_path / "genes.gff", LENGTHS)
    assert len(str(caught.value)) < 400

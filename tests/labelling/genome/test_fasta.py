"""FASTA files, sound and not, read beside Biopython."""

import gzip
import os
import tracemalloc

import numpy as np
import pytest
from Bio import bgzf
from Bio.SeqIO.FastaIO import SimpleFastaParser
from hypothesis import given
from hypothesis import strategies as st

from tapeless import TapelessError
from tapeless.labelling.genome import fasta
from tapeless.labelling.genome.fasta import read_lengths, read_records
from tests.random_cases import cases

TWO = b">chr1 the first\nACGTN\nacgt\n>chr2\nRYK\n"


def read(path):
    return [(record.name, record.bases.tobytes()) for record in read_records(path)]


@pytest.mark.parametrize(
    "content",
    [
        TWO,
        TWO.rstrip(b"\n"),
        TWO.replace(b"\n", b"\r\n"),
        TWO.replace(b"\n", b"\r"),
        b">chr1\r\nACGTN\racgt\n>chr2\r\nRYK",
        b"\xef\xbb\xbf" + TWO,
        b"\n\n" + TWO.replace(b"\n", b"\n\n"),
        TWO.replace(b"ACGTN", b" AC GT\tN "),
        b">chr1 caf\xe9 in Latin-1\nACGTNacgt\n>chr2\nRYK\n",
    ],
)
def test_line_ends_blanks_and_marks(tmp_path, content):
    path = tmp_path / "a.fa"
    path.write_bytes(content)
    assert read(path) == [("chr1", b"ACGTNacgt"), ("chr2", b"RYK")]
    assert read_lengths(path) == {"chr1": 9, "chr2": 3}


def test_compressed_files_whatever_their_name(tmp_path):
    (tmp_path / "gzip.fa").write_bytes(gzip.compress(TWO, mtime=0))
    (tmp_path / "members.gz").write_bytes(gzip.compress(TWO[:12], mtime=0) + gzip.compress(TWO[12:], mtime=0))
    with bgzf.BgzfWriter(tmp_path / "bgzip.fa.gz") as file:
        file.write(TWO)
    for path in tmp_path.iterdir():
        assert read(path) == [("chr1", b"ACGTNacgt"), ("chr2", b"RYK")]


@given(
    st.lists(st.text("ACGTNacgtn", min_size=1, max_size=300), min_size=1, max_size=5),
    st.integers(1, 70),
    st.sampled_from(["\n", "\r\n", "\r"]),
)
@cases(60)
def test_as_biopython_reads_it(tmp_path_factory, sequences, width, end):
    path = tmp_path_factory.mktemp("fasta") / "a.fa"
    lines = []
    for number, sequence in enumerate(sequences):
        lines.append(f">s{number} and more")
        lines += [sequence[start : start + width] for start in range(0, len(sequence), width)]
    path.write_text(end.join(lines), newline="")
    with path.open() as handle:
        expected = [(title.split()[0], sequence.encode()) for title, sequence in SimpleFastaParser(handle)]
    assert read(path) == expected


MALFORMED = {
    b"": "is empty",
    b"\n \r\n": "is empty",
    b"ACGT\nACGT\n": "begins with 'ACGT' where a header",
    b";old comment\n>a\nACGT\n": "begins with ';old comment'",
    b"@read\nACGT\n+\nIIII\n": "begins with '@read'",
    b"##gff-version 3\n": "begins with '##gff-version 3'",
    b" >a\nACGT\n": "begins with '>a' where a header",
    "\ufeff>a\nACGT".encode("utf-16-le"): "where a header",
    b">\nACGT\n": "header without a name, '>'",
    b"> chr1\nACGT\n": "header without a name, '> chr1'",
    b">a\x07\nACGT\n": "unprintable characters in its name",
    b">a\n": "record 'a' is empty",
    b">a\n>b\nACGT\n": "record 'a' is empty",
    b">a\nACGT\n>b\n\n": "record 'b' is empty",
    b">a\nAC\n>b\nAC\n>a again\nAC\n": "two records named 'a'",
    b">a\nACGT\n>p\nACGT\nMEEP\n": "record 'p' holds 'E' at position 6.*looks like a protein",
    b">a\nMSTNPKPQRK*\n": "record 'a' holds 'P' at position 5.*protein",
    b">a\nAC--GT\n": "record 'a' holds '-' at position 3, a gap",
    b">a\nACGT 10\n": "record 'a' holds '1' at position 5",
    b">a\nACGT;\n": "record 'a' holds ';' at position 5",
    b">a\nAC\xc3\xa9\n": "record 'a' holds 'é' at position 3",
    b">a\nAC\x00GT\n": r"record 'a' holds '\\x00' at position 3",
    b">a\nAC >b\nGT\n": "record 'a' holds '>' at position 3",
    gzip.compress(TWO, mtime=0)[:-9]: "damaged: its gzip data is cut short",
    gzip.compress(TWO, mtime=0)[:20]: "damaged",
    gzip.compress(TWO, mtime=0)[:15] + b"\x55\xaa" * 20: "damaged",
    gzip.compress(TWO, mtime=0) + b"rubbish": "damaged",
    gzip.compress(b"", mtime=0): "is empty",
    b"BZh91AY&SY": "compressed with bzip2",
    b"\xfd7zXZ\x00": "compressed with xz",
    b"PK\x03\x04": "compressed with zip",
    b"\x28\xb5\x2f\xfd\x00": "its zstd data is cut short",
}


@pytest.mark.parametrize("content", MALFORMED)
def test_what_is_no_fasta(tmp_path, content):
    path = tmp_path / "bad.fa"
    path.write_bytes(content)
    with pytest.raises(TapelessError, match=MALFORMED[content]) as caught:
        read_lengths(path)
    assert "bad.fa" in str(caught.value)


def test_paths_that_are_no_files(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for name, sentence in {
        "absent.fa": "No such file",
        ".": "is a folder",
        "pipe": "not a plain file",
        "a\0b": "no name of a file",
    }.items():
        with pytest.raises(TapelessError, match=sentence):
            read_lengths(tmp_path / name)


def test_lines_longer_than_a_piece(tmp_path, monkeypatch):
    monkeypatch.setattr(fasta, "PIECE", 4)
    path = tmp_path / "a.fa"
    path.write_bytes(b">ab\nACGTACGTAC\n>c\nACGT\n")
    assert read(path) == [("ab", b"ACGTACGTAC"), ("c", b"ACGT")]
    path.write_bytes(b">ab\nACGT>c\nACGT\n")
    with pytest.raises(TapelessError, match="record 'ab' holds '>' at position 5"):
        read(path)


@pytest.mark.parametrize("width", [60, 4_000_000])
def test_memory_is_that_of_the_longest_record(tmp_path, width):
    path = tmp_path / "long.fa"
    length = 2_000_000
    sequence = np.random.default_rng(0).choice(np.frombuffer(b"ACGT", np.uint8), length).tobytes()
    lines = b"\n".join(sequence[start : start + width] for start in range(0, length, width))
    path.write_bytes(b"".join(b">s%d\n%s\n" % (number, lines) for number in range(3)))
    tracemalloc.start()
    try:
        count = sum(np.count_nonzero(record.bases == ord("A")) for record in read_records(path))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert count == 3 * sequence.count(b"A")
    assert peak < 2 * 1.2 * length + 2.5e6  # the record, the one before it, and pieces of a mebibyte

"""Probabilities to exons, GFF3 and bedGraph: against plain definitions, and read back with the field's own parsers."""

import tracemalloc
import warnings
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapeless import TapelessError
from tapeless.labelling.genome.gff import read_annotation
from tapeless.labelling.genome.output import Segmentation, find_stretches, output_paths, writing
from tests.random_cases import cases

LENGTHS = {"chr1": 400, "a,b;c": 120}


def letters(length, seed=0):
    return np.random.default_rng(seed).choice(np.frombuffer(b"ACGT", np.uint8), length)


LETTERS = {name: letters(length) for name, length in LENGTHS.items()}


def plain_exons(values, cut):
    """Base by base: mark, close the gaps between marks, drop what is short."""
    marks = [value >= cut.threshold for value in values]
    inside = [at for at, mark in enumerate(marks) if mark]
    for left, right in pairwise(inside):
        if right - left - 1 <= cut.gap:
            marks[left : right + 1] = [True] * (right - left + 1)
    found, start = [], None
    for at, mark in enumerate([*marks, False]):
        if mark and start is None:
            start = at
        elif not mark and start is not None:
            if at - start >= cut.shortest:
                found.append((start, at, float(np.mean(values[start:at]))))
            start = None
    return found


def pieces(values, size):
    return [values[start : start + size] for start in range(0, len(values), size)]


@given(
    st.lists(st.sampled_from([0.0, 0.1, 0.4, 0.5, 0.8, 1.0]), max_size=60),
    st.integers(1, 61),
    st.builds(Segmentation, st.sampled_from([0.1, 0.5, 1.0]), st.integers(1, 6), st.integers(0, 4)),
)
@cases(400)
def test_exons_by_their_definition_whatever_the_pieces(values, size, cut):
    found = [(exon.start, exon.end) for exon in find_stretches(pieces(np.array(values), size), cut)]
    expected = plain_exons(values, cut)
    assert found == [(start, end) for start, end, _ in expected]
    means = [exon.probability for exon in find_stretches(pieces(np.array(values, np.float32), size), cut)]
    np.testing.assert_allclose(means, [mean for _, _, mean in expected], rtol=1e-6)


def test_an_exon_is_told_as_soon_as_it_has_ended():
    def endless():
        yield np.ones(5)
        while True:
            yield np.zeros(5)

    assert next(find_stretches(endless(), Segmentation(shortest=2, gap=20))).end == 5


def probabilities(seed=0):
    """Smooth enough for exons of all lengths, and different on the strands."""
    random = np.random.default_rng(seed)
    made = {}
    for name, length in LENGTHS.items():
        noise = np.cumsum(random.standard_normal((2, length)), axis=1)
        made[name] = (0.5 + 0.5 * np.sin(noise)).astype(np.float32)
    return made


def write(prefix, made, size=37, cut=None):
    found: dict = {}
    with writing(prefix, LENGTHS, cut or Segmentation(shortest=3, gap=2)) as writer:
        for name, (plus, minus) in made.items():
            exons = writer.add(name, LETTERS[name], pieces(plus, size), pieces(minus[::-1], size))
            found |= {(name, strand): exons[strand] for strand in "+-"}
    return found


def test_bedgraph_holds_every_base_rounded_and_runs_merged(tmp_path):
    made = probabilities()
    write(tmp_path / "out", made)
    for index, path in enumerate(output_paths(tmp_path / "out")[1:]):
        values = {name: np.full(length, np.nan) for name, length in LENGTHS.items()}
        before = ("", 0, "")
        for line in path.read_text().splitlines():
            name, start, end, value = line.split("\t")
            assert np.isnan(values[name][int(start) : int(end)]).all()
            assert int(end) > int(start)
            if name == before[0]:
                assert int(start) == before[1]
                assert value != before[2]
            before = name, int(end), value
            values[name][int(start) : int(end)] = float(value)
        for name, strands in made.items():
            np.testing.assert_allclose(values[name], strands[index], atol=0.005 + 1e-6)


def test_the_same_files_whatever_the_pieces(tmp_path):
    made = probabilities()
    for size in (1, 37, 400):
        write(tmp_path / str(size), made, size)
    for path in output_paths(tmp_path / "1"):
        for other in ("37", "400"):
            assert (tmp_path / path.name.replace("1", other, 1)).read_bytes() == path.read_bytes()


def test_gff_holds_the_exons_of_both_strands_in_order(tmp_path):
    made = probabilities()
    cut = Segmentation(shortest=3, gap=2)
    found = write(tmp_path / "out", made, cut=cut)
    lines = (tmp_path / "out.gff3").read_text().splitlines()
    assert lines[:3] == ["##gff-version 3", "##sequence-region chr1 1 400", "##sequence-region a%2Cb%3Bc 1 120"]
    rows = [line.split("\t") for line in lines[3:]]
    expected = []
    for name, strands in made.items():
        exons = [(*exon, strand) for strand, each in zip("+-", strands, strict=True) for exon in plain_exons(each, cut)]
        assert {strand for *_, strand in exons} == {"+", "-"}
        for start, end, mean, strand in sorted(exons):
            expected.append((name.replace(",", "%2C").replace(";", "%3B"), start + 1, end, f"{mean:.4f}", strand))
    assert [(row[0], int(row[3]), int(row[4]), row[5], row[6]) for row in rows] == expected
    assert {(row[1], row[2], row[7]) for row in rows} == {("tapeless", "exon", ".")}
    assert [row[8] for row in rows] == [f"ID=exon{at};probability={row[5]}" for at, row in enumerate(rows, 1)]
    again = read_annotation(tmp_path / "out.gff3", LENGTHS)
    for key, intervals in found.items():
        np.testing.assert_array_equal(again.intervals[key], intervals)


def test_gffutils_reads_it(tmp_path):
    import gffutils

    found = write(tmp_path / "out", probabilities())
    database = gffutils.create_db(str(tmp_path / "out.gff3"), ":memory:")
    try:
        read = [(each.seqid, each.strand, each.start - 1, each.end) for each in database.features_of_type("exon")]
        scores = [(float(each.score), float(each.attributes["probability"][0])) for each in database.all_features()]
    finally:
        database.conn.close()
    escaped = {"chr1": "chr1", "a,b;c": "a%2Cb%3Bc"}
    expected = [(escaped[name], strand, *pair) for (name, strand), each in found.items() for pair in each.tolist()]
    assert sorted(read) == sorted(expected)
    assert all(score == probability and 0.3 < score <= 1 for score, probability in scores)


def test_bcbio_and_biopython_read_it(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # BCBio-GFF speaks of its own imports
        from BCBio import GFF
    found = write(tmp_path / "out", probabilities())
    with (tmp_path / "out.gff3").open() as file:
        records = list(GFF.parse(file))
    read = [
        (record.id, "+-"[each.location.strand < 0], int(each.location.start), int(each.location.end))
        for record in records
        for each in record.features
    ]
    names = {record.id for record in records}
    assert len(names) == 2
    expected = [(strand, *pair) for (_, strand), each in found.items() for pair in each.tolist()]
    assert sorted(each[1:] for each in read) == sorted(tuple(each) for each in expected)


def test_nothing_is_left_of_what_went_wrong(tmp_path):
    made = probabilities()
    write(tmp_path / "out", made)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def interrupted():
        yield made["chr1"][0][:200]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), writing(tmp_path / "out", LENGTHS) as writer:
        writer.add("chr1", LETTERS["chr1"], interrupted(), [made["chr1"][1]])
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert len(before) == 3


ZEROS = np.zeros(400, np.float32)


@pytest.mark.parametrize(
    ("plus", "minus", "sentence"),
    [
        (ZEROS[:-1], ZEROS, "399 bases of 'chr1' came, but it has 400"),
        (ZEROS, ZEROS[:-1], "399 bases of 'chr1' came"),
        (np.zeros(401), ZEROS, "401 bases of 'chr1' came"),
        (ZEROS, np.zeros(900), "900 bases of 'chr1' came"),
        (np.where(np.arange(400) == 7, np.nan, 0), ZEROS, "holds nan at base 8: no probability"),
        (np.where(np.arange(400) == 7, 1.1, 0), ZEROS, "holds 1.1 at base 8: no probability"),
        (ZEROS, ZEROS - 1, "holds -1.0 at base 1: no probability"),
    ],
)
def test_predictions_that_are_none(tmp_path, plus, minus, sentence):
    with pytest.raises(TapelessError, match=sentence), writing(tmp_path / "out", LENGTHS) as writer:
        writer.add("chr1", LETTERS["chr1"], [plus], [minus])
    assert not list(tmp_path.iterdir())


def test_averages_a_little_beyond_one_are_one(tmp_path):
    with writing(tmp_path / "out", {"a": 40}) as writer:
        writer.add("a", letters(40), [np.full(40, 1.0009)], [np.full(40, -1e-9)])
    assert "\t1\t40\t1.0000\t+" in (tmp_path / "out.gff3").read_text()
    assert (tmp_path / "out.minus.bedgraph").read_text() == "a\t0\t40\t0\n"


def test_sequences_that_are_unknown_twice_or_missing(tmp_path):
    values = np.zeros(120)
    with pytest.raises(TapelessError, match="'chrX' was not announced"), writing(tmp_path / "o", LENGTHS) as writer:
        writer.add("chrX", letters(120), [values], [values])
    with writing(tmp_path / "once", {"a": 120}) as writer:
        writer.add("a", letters(120), [values], [values])
        with pytest.raises(TapelessError, match="second time"):
            writer.add("a", letters(120), [values], [values])
    with pytest.raises(TapelessError, match="1 of 2 sequences were not"), writing(tmp_path / "o", LENGTHS) as writer:
        writer.add("a,b;c", letters(120), [values], [values])
    assert {path.name.split(".")[0] for path in tmp_path.iterdir()} == {"once"}


def test_places_that_cannot_be_written(tmp_path):
    (tmp_path / "taken.plus.bedgraph").mkdir()
    (tmp_path / "file").touch()
    for prefix, sentence in (
        (tmp_path / "absent" / "out", "No such file"),
        (tmp_path / "file" / "out", "Not a directory"),
        (tmp_path / "taken", "it is a folder"),
        (tmp_path / "a\0b", "no name for output"),
    ):
        with pytest.raises(TapelessError, match=sentence), writing(prefix, LENGTHS):
            raise RuntimeError("the block must not begin")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "taken.plus.bedgraph"]


@pytest.mark.parametrize("name", ["#1", "track", "browser"])
def test_names_that_bedgraph_cannot_hold(tmp_path, name):
    with pytest.raises(TapelessError, match="reads as a comment"), writing(tmp_path / "out", {name: 3}):
        raise RuntimeError("the block must not begin")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("threshold", 0),
        ("threshold", 1.1),
        ("threshold", float("nan")),
        ("shortest", 0),
        ("shortest", 2.5),
        ("gap", -1),
        ("gap", True),
    ],
)
def test_cuts_that_make_no_sense(field, value):
    with pytest.raises(TapelessError, match=f"{field} must be"):
        Segmentation(**{field: value})


def test_memory_is_that_of_one_strand(tmp_path):
    length, size = 3_000_000, 50_000

    def strand(seed):
        random = np.random.default_rng(seed)
        for _ in range(length // size):
            yield np.repeat(random.random(size // 50, dtype=np.float32), 50)

    tracemalloc.start()
    try:
        with writing(tmp_path / "out", {"long": length}) as writer:
            found = writer.add("long", np.broadcast_to(np.uint8(65), length), strand(0), strand(1))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(found["+"]) > 10_000
    # One float32 strand; what a piece of a mebibyte needs; and the exons, far more of them than a genome has.
    assert peak < 4 * length + 80e6

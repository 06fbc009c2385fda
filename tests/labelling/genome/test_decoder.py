"""The decoder: its op against enumeration, genes that are genes by construction, and what it learns."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise, product

import numpy as np
import pytest

from tapeless.check import op
from tapeless.errors import TapelessError
from tapeless.labelling.genome import found as finding
from tapeless.labelling.genome import paths as reference
from tapeless.labelling.genome import paths_cpu as cpu
from tapeless.labelling.genome.codons import codon_indices
from tapeless.labelling.genome.decoder import (
    NETWORK,
    USUAL,
    Annotated,
    GeneDecoder,
    decode,
    learn,
    with_network,
)
from tapeless.labelling.genome.dna import digits_of, opposite_bases
from tapeless.labelling.genome.evidence import Counts, Sites, count, learned
from tapeless.labelling.genome.found import Calibration, Finder, allowed_bases, calibrated, find, read_regions
from tapeless.labelling.genome.genes import Gene
from tapeless.labelling.genome.genetic_code import CHANGES, GeneticCode
from tapeless.labelling.genome.lattice import EXON, FEATURES
from tapeless.labelling.genome.minimise import minimise
from tapeless.labelling.genome.scores import Agreement, Matched, Truth, greedy, least_value, of_genes, ruled
from tapeless.labelling.genome.synthetic import Synthetic

CODE = GeneticCode()


def random_lattice(rng, nodes, segments):
    """A chain, so that there is a path, and more; sorted by where segments end."""
    first = np.append(np.arange(nodes - 1), rng.integers(0, nodes - 1, segments))
    last = np.append(np.arange(1, nodes), rng.integers(1, nodes, segments))
    forward = first < last
    order = np.argsort(last[forward], kind="stable")
    return first[forward][order], last[forward][order]


def paths(first, last, node, end):
    if node == end:
        yield ()
    for e in np.flatnonzero(first == node):
        for rest in paths(first, last, last[e], end):
            yield (int(e), *rest)


def run_reference(scores, first, last, path, nodes):
    loss, alpha = np.zeros(1, scores.dtype), np.zeros(nodes, scores.dtype)
    reference.forward(loss, alpha, scores, first, last, path)
    gradient = np.zeros(len(scores))
    reference.backward(gradient, alpha.real, scores.real, first, last, path)
    return loss[0], alpha, gradient


@pytest.mark.parametrize("seed", range(4))
def test_the_op_is_its_definition_and_its_backward_the_derivative(seed):
    """Of random lattices, against all paths one by one, a complex step, and the compiled kernels."""
    rng = np.random.default_rng(seed)
    nodes = 6
    first, last = random_lattice(rng, nodes, 9)
    scores = 20 * rng.normal(size=len(first))
    every = list(paths(first, last, 0, nodes - 1))
    true = np.zeros(len(first))
    true[list(every[seed])] = 1
    sums = np.array([scores[list(each)].sum() for each in every])
    whole = sums.max() + np.log(np.exp(sums - sums.max()).sum())
    loss, alpha, gradient = run_reference(scores, first, last, true, nodes)
    assert abs(loss - (whole - sums[seed])) < 1e-12 * max(1, abs(whole))
    shares = np.zeros(len(first))
    for each, total in zip(every, sums, strict=True):
        shares[list(each)] += np.exp(total - whole)
    np.testing.assert_allclose(gradient, shares - true, atol=1e-12)
    for e in range(len(scores)):
        stepped = scores.astype(complex)
        stepped[e] += 1e-30j
        assert abs(run_reference(stepped, first, last, true, nodes)[0].imag / 1e-30 - gradient[e]) < 1e-12
    compiled = np.zeros(1), np.zeros(nodes), np.zeros(len(scores))
    calls = cpu.forward(compiled[0], compiled[1], scores, first, last, true)
    calls += cpu.backward(compiled[2], compiled[1], scores, first, last, true, [np.zeros(nodes)])
    best, before = np.zeros(nodes), np.zeros(nodes, np.int64)
    calls += cpu.best_path(best, before, scores, first, last)
    for call in calls:
        call()
    np.testing.assert_allclose(compiled[0][0], loss, rtol=1e-12)
    np.testing.assert_allclose(compiled[1], alpha, rtol=1e-12)
    np.testing.assert_allclose(compiled[2], gradient, atol=1e-12)
    assert np.isclose(best[-1], sums.max())


def test_the_project_s_own_checker_calls_it_right_and_a_forgotten_path_wrong():
    made = reference.example(np.random.default_rng(1))
    first, last, path = made["first"], made["last"], made["path"]

    def forward(scores):
        loss, alpha = np.zeros(1, scores.dtype), np.zeros(made["alpha"], scores.dtype)
        reference.forward(loss, alpha, scores, first, last, path)
        return loss, alpha

    for true, right in ((path, True), (0 * path, False)):

        def backward(dy, alpha, scores, true=true):
            gradient = np.zeros(len(scores))
            reference.backward(gradient, alpha, scores, first, last, true)
            return (dy * gradient,)

        assert bool(op(forward, backward, (made["scores"],), saved=True)) is right


def test_an_op_that_nothing_leads_through():
    """A node without a way to it has none of the probability, and nothing is not a number."""
    first, last = np.array([0, 1, 0]), np.array([2, 2, 3])
    loss, alpha, gradient = run_reference(np.zeros(3), first, last, np.array([0.0, 0, 1]), 4)
    assert loss == 0
    assert alpha[1] == -np.inf
    np.testing.assert_array_equal(gradient, 0)


def test_minimise_finds_the_minimum_of_a_convex_function():
    matrix = np.array([[5.0, 2], [2, 1]])

    def objective(x):
        off = x - np.array([3.0, -7])
        return float(off @ matrix @ off) / 2 + float(np.cosh(off).sum()), matrix @ off + np.sinh(off)

    np.testing.assert_allclose(minimise(objective, np.zeros(2)), [3, -7], atol=1e-4)


def statistics(seed=0):
    rng = np.random.default_rng(seed)
    shapes = ((64,), (64,), (4,), (15, 5), (9, 5), (18, 5))
    made = [rng.integers(1, 30, shape).astype(float) for shape in shapes]
    return learned(Counts(made[0], made[1], made[2], made[3], made[4], made[5]))


def a_decoder(code=CODE, seed=0, generous=6.0):
    """One that sees genes nearly everywhere, spliced ones too."""
    weights = USUAL.copy()
    weights[[FEATURES.index(name) for name in ("gene", "intron")]] = generous
    weights[FEATURES.index("one exon, log length")] = 1.0
    return GeneDecoder(code, statistics(seed), Sites(-3.0, -3.0, 20, 400, 60.0, 30), weights)


def letters_of(length, seed=0):
    return np.random.default_rng(seed).choice(np.frombuffer(b"ACGTacgtN", np.uint8), length, p=[0.124] * 8 + [0.008])


@pytest.mark.parametrize(("seed", "number"), [*product(range(3), (1, 4, 12)), (0, 6)])
def test_genes_are_genes_by_construction(seed, number):
    """Whatever the letters: real ends, no stop inside, whole codons, GT–AG, and no two on one place."""
    code = GeneticCode(number, ("ATG", "CTG"))
    letters = letters_of(12_000, seed)
    upper = np.frombuffer(letters.tobytes().upper(), np.uint8)
    decoded = decode(a_decoder(code, seed), digits_of(letters), None)
    assert len(decoded.genes) > 30
    assert {gene.strand for gene in decoded.genes} == {"+", "-"}
    assert any(len(gene.exons) > 1 for gene in decoded.genes)
    for gene in decoded.genes:
        coding = gene.coding(upper)
        codons = codon_indices(coding)[: len(coding) - 2 : 3]
        assert not code.is_stop[codons[:-1]].any()
        assert code.is_start[codons[0]] or not gene.has_start
        assert not gene.has_stop or (code.is_stop[codons[-1]] and len(coding) % 3 == 0)
        assert gene.has_start or 0 in gene.exons[0] or 12_000 in gene.exons[-1]
        for (_, left), (right, _) in pairwise(gene.exons):
            intron = Gene(gene.strand, ((left, right),)).coding(upper).tobytes()
            assert intron.startswith(b"GT")
            assert intron.endswith(b"AG")
    assert all(left.right <= right.left for left, right in pairwise(decoded.genes))
    assert decoded.probabilities.min() >= 0
    assert decoded.probabilities.max() <= 1


def test_a_stop_across_an_intron_is_none():
    """TA|A and T|AG over an intron: with a code in which it is no stop, the gene is there, else it is not."""
    inner = "GTAAGT" + "C" * 30 + "TTTCAG"
    for before, behind in (("TA", "A"), ("T", "AG")):
        text = "TGACTGACTGAC" + "ATG" + "GCC" * 12 + before + inner + behind + "GCC" * 12 + "TGA" + "CCCC"
        letters = np.frombuffer(text.encode(), np.uint8)
        genes = []
        for number in (1, 6):  # in the code of ciliates, TAA and TAG are no stops
            lattice = a_decoder(GeneticCode(number)).lattice(digits_of(letters), None, (False, False))
            ends = lattice.segments.right[(lattice.segments.kind == EXON) & (lattice.segments.strand == 0)]
            joined = decode(a_decoder(GeneticCode(number), generous=20), digits_of(letters), None).genes
            genes.append([gene for gene in joined if len(gene.exons) == 2 and gene.strand == "+"])
            assert len(text) - 4 in ends
        assert not [gene for gene in genes[0] if gene.right == len(text) - 4]
        assert [gene.exons[0][0] for gene in genes[1]] == [12]


def annotated(number, length):
    made = Synthetic(0).chromosome(number, length)
    genes = tuple(Gene(gene.strand, gene.exons) for gene in made.genes)
    labels = tuple(np.zeros(length, np.int8) for _ in "+-")
    for gene in genes:
        for start, end in gene.exons:
            labels[gene.strand == "-"][start:end] = 1
    return made.bases, Annotated(digits_of(made.bases), genes, (labels[0], labels[1]))


def truth_of(part):
    exons = (frozenset(e for gene in part.genes if gene.strand == strand for e in gene.exons) for strand in "+-")
    return Truth(part.labels, (next(exons), next(exons)), frozenset(gene.ends for gene in part.genes))


@pytest.fixture(scope="module")
def trained():
    return learn([annotated(1, 60_000)[1]], CODE)


def test_spliced_genes_are_learned_and_found_on_another_chromosome(trained):
    """Where the network alone had 4 exons in 100 right."""
    _, part = annotated(2, 40_000)
    reached = of_genes(truth_of(part), decode(trained, part.digits, None).genes)
    assert reached.bases.f1 > 0.93
    assert reached.exact.f1 > 0.65
    lattice = trained.lattice(part.digits, None, (False, False))
    rules = [(truth_of(part), greedy(lattice, feature)) for feature in (None, "codons")]
    assert all(ruled([each], least_value([each])).exact.f1 < reached.exact.f1 for each in rules)


def test_a_decoder_comes_back_as_it_was_written(trained, tmp_path):
    finder = Finder("CDS", Calibration(1.5, -0.5), 0.0, trained)
    finder.write(tmp_path)
    again = Finder.read(tmp_path).decoder
    assert again is not None
    _, part = annotated(3, 20_000)
    assert decode(again, part.digits, None).genes == decode(trained, part.digits, None).genes
    path = tmp_path / "decoder.json"
    content = json.loads(path.read_text())
    changes: list[dict[str, object]] = [
        {"weights": {}},
        {"code": {"number": 99, "starts": ["ATG"]}},
        {"statistics": {}},
        {"sites": {"x": 1}},
    ]
    for change in changes:
        path.write_text(json.dumps(content | {"decoder": content["decoder"] | change}))
        with pytest.raises(TapelessError, match=r"decoder\.json is damaged"):
            Finder.read(tmp_path)


def test_a_network_counts_where_it_helps_and_only_there(trained):
    _, part = annotated(4, 60_000)
    rng = np.random.default_rng(0)
    noise = [rng.normal(size=60_000) for _ in "+-"]
    knowing = [np.where(labels == 1, 4.0, -4.0) + each for labels, each in zip(part.labels, noise, strict=True)]
    for network, helps in ((noise, False), (knowing, True)):
        told = Annotated(part.digits, part.genes, part.labels, (network[0], network[1]))
        found = with_network(trained, [told])
        assert found.uses_network is helps
        assert bool(found.weights[NETWORK] > 0) is helps
        assert found.gained is not None
    better = of_genes(truth_of(part), decode(found, part.digits, (knowing[0], knowing[1])).genes)
    assert better.exact.f1 > of_genes(truth_of(part), decode(trained, part.digits, None).genes).exact.f1


def test_blocks_find_what_the_whole_finds(trained, monkeypatch):
    letters, part = annotated(5, 40_000)
    finder = Finder("CDS", Calibration(), 0.0, trained)

    def network(first, last):
        raise AssertionError("it is not asked where it does not count")

    (whole,) = find(finder, letters, network)
    assert whole.genes == decode(trained, part.digits, None).genes
    monkeypatch.setattr(finding, "BLOCK", 9_000)
    monkeypatch.setattr(finding, "MARGIN", 6_000)
    blocks = list(find(finder, letters, network))
    assert [each.first for each in blocks] == [0, 9000, 18_000, 27_000, 36_000]
    assert [gene.ends for each in blocks for gene in each.genes] == [gene.ends for gene in whole.genes]
    joined = np.concatenate([each.probabilities for each in blocks], axis=1)
    np.testing.assert_allclose(joined, whole.probabilities, atol=1e-3)
    sure = Finder("CDS", Calibration(), 0.9, trained)
    assert [gene for each in find(sure, letters, network) for gene in each.genes] == [
        gene for each in blocks for gene in each.genes if gene.probability >= 0.9
    ]


def test_no_gene_touches_what_is_left_out(trained, tmp_path):
    letters, _ = annotated(5, 40_000)
    finder = Finder("CDS", Calibration(), 0.0, trained)
    (whole,) = find(finder, letters, lambda first, last: np.zeros((2, last - first)))
    gone, masked = whole.genes[1], whole.genes[2]
    (tmp_path / "out.bed").write_text(f"# what is left out\nchr5\t{gone.left + 3}\t{gone.left + 9}\tx\n")
    letters = letters.copy()
    letters[masked.left : masked.right] += ord("a") - ord("A")
    regions = read_regions(tmp_path / "out.bed", {"chr5": 40_000})
    for asked in (False, True):
        allowed = allowed_bases(letters, regions["chr5"], asked)
        (found,) = find(finder, letters, lambda first, last: np.zeros((2, last - first)), allowed)
        assert all(gene.right <= gone.left + 3 or gene.left >= gone.left + 9 for gene in found.genes)
        assert (masked.ends in {gene.ends for gene in found.genes}) is not asked
    assert allowed_bases(letters, None, False) is None


@pytest.mark.parametrize("line", ["chr5\t9", "chr5\t9\tx", "chr5\t9\t3", "chr6\t1\t2", "chr5 1 2"])
def test_regions_that_are_none_are_a_sentence(tmp_path, line):
    (tmp_path / "x.bed").write_text(f"track x\n{line}\n")
    with pytest.raises(TapelessError, match=r"x\.bed, line 2: "):
        read_regions(tmp_path / "x.bed", {"chr5": 10})


@pytest.mark.parametrize("aside", range(3))
def test_a_gene_that_a_cut_goes_through_is_found_up_to_it(trained, aside):
    """From either side, and wherever in a codon the cut is."""
    letters, part = annotated(2, 40_000)
    gene = max(part.genes, key=lambda each: each.exons[0][1] - each.exons[0][0])
    cut = (gene.exons[0][0] + gene.exons[0][1]) // 2 + aside
    for first, last in ((cut, 40_000), (0, cut)):
        clipped = [each for each in (every.clipped(first, last) for every in part.genes) if each is not None]
        true = clipped[0 if first else -1]
        assert {true.has_start, true.has_stop} == {True, False}
        decoded = decode(trained, digits_of(letters[first:last]), None, (first > 0, first == 0)).genes
        found = decoded[0 if first else -1]
        assert (found.strand, found.has_start, found.has_stop) == (gene.strand, true.has_start, true.has_stop)
        number = 0 if first else -1
        assert found.exons[number] == true.exons[number]
        if not true.has_start:
            assert found.frame == true.frame


def test_counts_of_parts_add_up_to_those_of_the_whole():
    _, part = annotated(1, 60_000)
    halves = [count(part.digits, part.genes, part.labels, *here) for here in ((0, 30_000), (30_000, 60_000))]
    whole, both = count(part.digits, part.genes, part.labels, 0, 60_000), halves[0] + halves[1]
    for name, value in vars(whole).items():
        np.testing.assert_array_equal(getattr(both, name), value)
    assert whole.inside.sum() == sum(gene.length // 3 - 1 for gene in part.genes)


def test_calibrated_probabilities_are_true_as_often_as_they_say():
    rng = np.random.default_rng(0)
    odds = rng.normal(0, 3, 40_000)
    labels = (rng.random(40_000) < 1 / (1 + np.exp(-(0.5 * odds - 1)))).astype(np.int8)
    labels[::7] = -1
    found = calibrated(labels, 1 / (1 + np.exp(-odds)))
    np.testing.assert_allclose((found.scale, found.shift), (0.5, -1), atol=0.05)


def test_agreement_counts_what_is_known():
    """One exact, one with another end, one on the other strand, one unknown; on ten bases of which two are unknown."""
    labels = np.array([1, 1, 1, 0, 1, 1, 0, 0, -1, -1]), np.zeros(10)
    genes = frozenset({("+", ((0, 3),)), ("+", ((4, 6),))})
    truth = Truth(labels, (frozenset({(0, 3), (4, 6)}), frozenset()), genes)
    found = [Gene("+", ((0, 3),)), Gene("+", ((4, 7),)), Gene("-", ((0, 3),)), Gene("+", ((8, 10),))]
    assert of_genes(truth, found) == Agreement(Matched(5, 9, 5), Matched(1, 3, 2), Matched(1, 3, 2))


def flipped(start, end, letters):
    return len(letters) - end, len(letters) - start


def test_the_greedy_rule_takes_the_longest_frame_that_is_free():
    """Against all readings from a start codon to the next stop codon, one by one, longest first."""
    ends = "TAACTAACTAATTAGTTAGTTA"  # a stop codon in every frame of both strands
    text = ends + letters_of(3000).tobytes().decode().upper().replace("N", "A") + ends
    letters = np.frombuffer(text.encode(), np.uint8)
    readings: dict[tuple[str, int], tuple[int, int]] = {}  # by strand and stop codon, from the first start codon on
    for strand, own in (("+", text), ("-", opposite_bases(letters).tobytes().decode())):
        for start in range(len(own) - 2):
            codons = [own[at : at + 3] for at in range(start, len(own) - 2, 3)]
            stop = next((number for number, codon in enumerate(codons) if codon in ("TAA", "TAG", "TGA")), None)
            if codons[0] == "ATG" and stop is not None:
                right = start + 3 * stop + 3
                readings.setdefault((strand, right), (start, right) if strand == "+" else flipped(start, right, own))
    expected: list[tuple[int, int]] = []
    for left, right in sorted(readings.values(), key=lambda each: each[0] - each[1]):
        if right - left >= 60 and all(right <= other[0] or left >= other[1] for other in expected):
            expected.append((left, right))
    decoder = replace(a_decoder(), sites=Sites(shortest_gene=60))
    ranked = greedy(decoder.lattice(digits_of(letters), None, (False, False)), None)
    assert len(ranked) > 10
    assert sorted(gene.length for _, gene in ranked) == sorted(right - left for left, right in expected)
    assert [value for value, _ in ranked] == [gene.length for _, gene in ranked]


def test_codes_are_those_of_ncbi():
    from Bio.Data import CodonTable

    for number in CHANGES:
        table, code = CodonTable.unambiguous_dna_by_id[number], GeneticCode(number)
        for at, codon in enumerate("".join(each) for each in product("ACGT", repeat=3)):
            letter = code.amino_acids[at]
            assert letter == ("*" if codon in table.stop_codons else table.forward_table[codon]), (number, codon)


@pytest.mark.parametrize(
    ("number", "starts", "sentence"),
    [
        (7, ("ATG",), "no genetic code 7"),
        (1, ("TGA",), "'TGA' is no start codon"),
        (1, ("AUG",), "'AUG' is no"),
        (1, (), "no start codon"),
    ],
)
def test_codes_that_are_none_are_a_sentence(number, starts, sentence):
    with pytest.raises(TapelessError, match=sentence):
        GeneticCode(number, starts)

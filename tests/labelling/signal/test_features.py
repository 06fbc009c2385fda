"""Families of features against definitions written with loops; the same in blocks, on the other strand, and cut."""

import tracemalloc
from typing import Any

import numpy as np
import pytest

from tapeless.errors import TapelessError
from tapeless.labelling.genome.dna import StrandSignal, digits_of, digits_of_signal, encode, opposite_bases
from tapeless.labelling.signal import Features, Recording, hold_out
from tapeless.labelling.signal import features as wavelets
from tapeless.labelling.signal.features import FAMILIES
from tapeless.labelling.signal.store import make_store
from tests.labelling.signal.made import noise

SMALL: dict[str, Any] = {"scales": (3.0, 10.0), "bases_aside": 2, "longest_frame": 30}
STOPS = ("TAA", "TAG", "TGA")


def letters(length, seed=0, shares=(0.24, 0.24, 0.24, 0.24, 0.04)):
    return np.random.default_rng(seed).choice(np.frombuffer(b"ACGTN", np.uint8), length, p=shares)


def whole(features, signal, block=None):
    return np.concatenate([block for _, block in features.blocks(signal, block)])


def of(family, **changes):
    return Features((family,), **(SMALL | changes))


def plain_bases(text, aside):
    def letter(at):
        return [float(0 <= at < len(text) and text[at] == each) for each in "ACGT"]

    offsets = range(-aside, aside + 1)
    return [[value for offset in offsets for value in letter(at + offset)] for at in range(len(text))]


def codon(text, at):
    found = text[at : at + 3] if at >= 0 else ""
    return found if len(found) == 3 and "N" not in found else None


def plain_frames(text, longest):
    def closes(at):
        return 0 <= at <= len(text) - 3 and codon(text, at) in (None, *STOPS)

    def open_to(at, step):
        bases = 0
        while bases < longest and not closes(at):
            at, bases = at + step, bases + 3
        return min(bases, longest)

    def reading(at):
        end = at + open_to(at, 3)
        if end - at < longest or closes(end):
            first = begin = end
            while not closes(begin - 3) and end - begin + 3 <= longest:
                begin -= 3
                first = begin if codon(text, begin) == "ATG" else first
            return min(end - first + 3, longest) if first < end and first <= at else 0
        back = [at - far for far in range(0, open_to(at, -3) + (not closes(at - open_to(at, -3))), 3)]
        return longest if any(codon(text, each) == "ATG" for each in back) else 0

    return [
        [
            np.log1p(bases) / 2
            for frame in range(3)
            for bases in (open_to(at - frame, -3), open_to(at - frame, 3), reading(at - frame))
        ]
        for at in range(len(text))
    ]


def plain_opposite(text, longest):
    other = text[::-1].translate(str.maketrans("ACGT", "TGCA"))
    return plain_frames(other, longest)[::-1]


PLAIN = {
    "bases": lambda text: plain_bases(text, 2),
    "frames": lambda text: plain_frames(text, 30),
    "opposite": lambda text: plain_opposite(text, 30),
}


@pytest.mark.parametrize("family", PLAIN)
@pytest.mark.parametrize("length", [1, 2, 3, 4, 31, 200, 2000])
def test_families_of_dna_by_their_definition(family, length):
    bases = letters(length, length)
    found = whole(of(family), encode(bases))
    assert found.dtype == np.float32
    assert found.shape == (length, of(family).width)
    np.testing.assert_allclose(found, PLAIN[family](bases.tobytes().decode()), atol=2e-6)


@pytest.mark.parametrize("families", [*((name,) for name in FAMILIES), FAMILIES, FAMILIES[::-1]])
def test_blocks_give_what_the_whole_gives(families):
    signal = encode(letters(700, 2))
    features = Features(families, **SMALL)
    expected = whole(features, signal)
    assert expected.shape == (700, features.width)
    for block in (1, 37, 350, 699, 5000):
        starts = [start for start, _ in features.blocks(signal, block)]
        assert starts == list(range(0, 700, min(block, 700)))
        np.testing.assert_allclose(whole(features, signal, block), expected, rtol=0, atol=3e-6)


def test_columns_are_those_of_the_families_in_their_order():
    signal = encode(letters(100, 3))
    for families in (FAMILIES, FAMILIES[::-1]):
        apart = np.concatenate([whole(of(name), signal) for name in families], axis=1)
        np.testing.assert_array_equal(whole(Features(families, **SMALL), signal), apart)
    np.testing.assert_array_equal(whole(of("wavelets"), signal), wavelets(signal, (3.0, 10.0)))


def test_the_other_strand_is_the_reverse_complement_read_forward():
    bases = letters(400, 4, (0.23, 0.23, 0.23, 0.23, 0.08))
    features = Features(FAMILIES, **SMALL)
    for block in (None, 61):
        minus = whole(features, StrandSignal(bases, "-"), block)
        np.testing.assert_array_equal(minus, whole(features, StrandSignal(opposite_bases(bases), "+"), block))
    assert not np.array_equal(minus, whole(features, StrandSignal(bases, "+")))


def test_letters_that_stand_for_several_are_nothing():
    """Nobody's neighbours, and they close every frame: what is not known is not open."""
    features = Features(("bases", "frames", "opposite"), **SMALL)
    middle = encode(b"ACGT" * 50 + b"N" * 300 + b"ACGT" * 50)
    assert not whole(features, middle)[200 + 40 : 500 - 40].any()


def test_what_lies_beyond_the_ends_closes_nothing():
    """A gene may go on there: the same letters between Ns are closed."""
    text = "CATGCCCCCCCCC"
    found = whole(of("frames"), encode(text.encode())).reshape(-1, 3, 3)
    at, frame = 6, 2  # in the codon CCC that begins at 4, behind ATG
    np.testing.assert_allclose(found[at, frame], np.log1p([30, 30, 30]) / 2, rtol=1e-6)
    closed = whole(of("frames"), encode(f"NNN{text}NNN".encode())).reshape(-1, 3, 3)
    np.testing.assert_allclose(closed[at + 3, frame], np.log1p([6, 9, 15]) / 2, rtol=1e-6)


def test_letters_by_name_and_by_signal():
    every = np.frombuffer(b"ACGTUacgtuNRYSWKMBDHV", np.uint8)
    assert digits_of(every).tolist() == [0, 1, 2, 3, 3] * 2 + [4] * 11
    np.testing.assert_array_equal(digits_of_signal(encode(every)), digits_of(every))


def test_an_open_frame_is_told_from_the_others():
    """Codons without a stop between two stops, and elsewhere stops in every frame: one frame is open, and which."""
    random = np.random.default_rng(5)
    sense = [a + b + c for a in "ACGT" for b in "ACGT" for c in "ACGT" if a + b + c not in STOPS]
    gene = "".join(random.choice(sense, 200))
    text = "TAACTAACTAAC" * 10 + gene + "TAACTAACTAAC" * 10
    found = whole(Features(("frames",)), encode(text.encode()))
    for at in (150, 300, 451, 602):
        frame = (at - 120) % 3
        openness = found[at].reshape(3, 3)[:, :2].sum(axis=1)
        assert openness.argmax() == frame
        expected = np.log1p([at - frame - 108, 720 - (at - frame)]) / 2
        np.testing.assert_allclose(found[at, 3 * frame : 3 * frame + 2], expected, rtol=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_trained_on_has_not_seen_what_is_held_out(family):
    """Other letters behind the cut, and the features before it are the same to the last bit."""
    bases = letters(600, 6)
    changed = np.concatenate([bases[:480], letters(120, 7)])
    stores = []
    for each in (bases, changed):
        training, _ = hold_out([Recording(encode(each), np.zeros(600, int))], 0.2)
        stores.append(make_store(training, of(family), 2))
    np.testing.assert_array_equal(stores[0].features, stores[1].features)
    assert len(stores[0].features) == 480
    uncut = [whole(of(family), encode(each))[:480] for each in (bases, changed)]
    assert not np.array_equal(*uncut)


def test_memory_is_that_of_a_block():
    features = Features(FAMILIES)
    bases = np.broadcast_to(np.uint8(ord("A")), 1_000_000)
    tracemalloc.start()
    try:
        for _ in features.blocks(StrandSignal(bases, "-")):
            pass
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 40 << 20  # all of them at once are 288 MB


def test_a_description_comes_back_as_it_was_kept():
    for features in (Features(), Features(FAMILIES, (3.5,), 2, 99)):
        kept = features.document()
        assert kept["version"] == 1
        assert Features.of(kept) == features
    with pytest.raises(ValueError, match="another version"):
        Features.of({**Features().document(), "version": 2})


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"families": ("wavelet",)}, "did you mean 'wavelets'"),
        ({"families": ()}, "at least one of"),
        ({"families": ("bases", "bases")}, "each once"),
        ({"families": "bases"}, "families must be a sequence"),
        ({"families": (["bases"],)}, "unknown family"),
        ({"scales": ()}, "scales are empty"),
        ({"bases_aside": 0}, "bases_aside must be"),
        ({"bases_aside": 65}, "bases_aside must be at most 64, not 65"),
        ({"longest_frame": 1e3}, "longest_frame must be"),
        ({"longest_frame": 1 << 17}, "longest_frame must be at most 65,535"),
        ({"longest_frame": 1000}, "longest_frame must be whole codons, a multiple of 3, not 1,000"),
    ],
)
def test_descriptions_that_make_no_sense(given, sentence):
    with pytest.raises(TapelessError, match=sentence):
        Features(**given)


def test_families_of_dna_want_dna():
    with pytest.raises(TapelessError, match="bases and frames are features of DNA"):
        Features(("wavelets", "bases", "frames")).blocks(noise(100))

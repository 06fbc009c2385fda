"""Maps of attention, by shading and as SVG."""

from xml.etree import ElementTree

import numpy as np
import pytest
from rich.cells import cell_len as columns_of

from tapeless.pictures.attention import LIMITS, SHADES, cell_len, cut, maps_drawn, maps_svg, shade, strips_drawn

WORDS = ["Max", "(", "1", ",", "<é&日>"]
SVG = "{http://www.w3.org/2000/svg}"


def causal(keys, seed=0):
    weights = np.tril(np.random.default_rng(seed).random((keys, keys)))
    return weights / weights.sum(1, keepdims=True)


def test_shades_rise_with_the_weight():
    assert [shade(w) for w in (0.0, *LIMITS, 1.0)] == [*SHADES, SHADES[-1]]
    assert [shade(limit - 1e-9) for limit in LIMITS] == list(SHADES[:-1])


@pytest.mark.parametrize("word", ["plain", "日本語", "naïve", "e\u0301te", "␣return", "ｆｕｌｌ", "", "⏎"])
def test_widths_are_those_of_a_terminal(word):
    assert cell_len(word) == columns_of(word)
    assert columns_of(cut(word, 4)) <= 4


@pytest.mark.parametrize("width", [40, 80, 120])
@pytest.mark.parametrize("keys", [1, 5, 30, 200])
@pytest.mark.parametrize("heads", [1, 4, 12])
def test_maps_fit_and_show_every_word_there_is_room_for(width, keys, heads):
    words = [WORDS[n % len(WORDS)] for n in range(keys)]
    maps = [(f"0.{head}", causal(keys, head)) for head in range(heads)]
    lines = maps_drawn(maps, words, width)
    assert max(map(columns_of, lines)) <= width
    text = "\n".join(lines)
    assert all(name in text for name, _ in maps)
    strips = strips_drawn([(10, maps), (2000, maps)], words, width)
    assert max(map(columns_of, strips)) <= width
    assert sum(line.startswith("2,000 ") for line in strips) == sum("0.0" in line or "0." in line for line in strips)


def test_a_row_is_what_a_query_takes():
    weights = np.eye(5)[::-1]  # the first looks at the last
    lines = maps_drawn([("0.0", weights)], WORDS, 80)
    margin = columns_of(WORDS[4]) + 1
    assert [line[margin:].rstrip() for line in lines[1:5]] == [" " * 8 + "██", " " * 6 + "██", " " * 4 + "██", "  ██"]
    assert lines[5].startswith("<é&日>")
    assert [line[:3] for line in lines[1:3]] == ["Max", "(  "]
    assert lines[6][margin:].split() == ["M", "(", "1", ",", "<"]


def test_a_map_of_one_query_is_that_of_the_last_word():
    lines = maps_drawn([("0.0", causal(5)), ("1.0", np.array([[0, 0, 0, 0, 1.0]]))], WORDS, 80)
    assert lines[5].rstrip().endswith("██")
    assert "█" not in lines[4].split("  ")[-1]


def test_strips_are_the_last_querys_over_the_checkpoints():
    early, late = np.full((5, 5), 0.2), np.eye(5)
    lines = strips_drawn([(1, [("0.0", early)]), (20, [("0.0", late)])], WORDS, 80)
    assert lines[1] == " 1 ░░░░░"
    assert lines[2] == "20     █"


def test_the_picture_is_xml_with_every_weight_that_can_be_seen():
    maps = [("0.0", causal(5)), ("0.1", np.eye(5))]
    root = ElementTree.fromstring(maps_svg([("block 0", maps), ("block 1", [("1.0", np.eye(5)[-1:])])], WORDS))
    names = [each.text for each in root.iter(f"{SVG}text")]
    assert {"block 0", "block 1", "0.0", "0.1", "1.0", *WORDS} <= {*names}
    shaded = [each for each in root.iter(f"{SVG}rect") if "fill-opacity" in each.attrib]
    assert len(shaded) == np.count_nonzero(causal(5) >= 0.01) + 5 + 1
    steps = ElementTree.fromstring(maps_svg([("block 0", [("0.0", np.eye(5)[:2])])], WORDS, ["10", "20"]))
    assert {"10", "20"} <= {each.text for each in steps.iter(f"{SVG}text")}

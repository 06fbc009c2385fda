"""Curves over each other, in letters and as SVG."""

from xml.etree import ElementTree

import pytest

from tapeless.pictures.curves import MARGIN, Curve, curves_svg, drawn

FALLING = Curve("runs/<falling> & co", [(0, 4.0), (50, 2.0), (100, 1.0)], beside=[(1, 5.0), (100, 0.5)])
LEVEL = Curve("level", [(20, 3.0), (200, 3.0)])
POINT = Curve("point", [(10, 2.5)])
NONE = Curve("none", [])


def cells(rows):
    return [row[MARGIN:] for row in rows[:-1]]


@pytest.mark.parametrize("width", [40, 80, 120])
def test_each_curve_has_its_letter_where_its_values_are(width):
    rows = drawn([FALLING, LEVEL, NONE, POINT], width)
    assert max(map(len, rows)) == width
    body = cells(rows)
    height = len(body)
    assert body[0][0] == "a"  # 4.0, the highest, at update 0
    assert "a" in body[-1]  # 1.0, the lowest, halfway through
    assert body[-1].rindex("a") == pytest.approx(0.5 * (width - MARGIN), abs=2)
    level = next(number for number, line in enumerate(body) if line.endswith("b"))
    assert level == round((4.0 - 3.0) / 3.0 * (height - 1))
    assert "".join(body).count("d") + "".join(body).count("*") >= 1
    assert "c" not in "".join(body)
    assert rows[0].strip().startswith("4 ┤")
    assert rows[-1].split() == ["0", "200"]


def test_curves_in_one_place_are_marked():
    body = cells(drawn([LEVEL, LEVEL], 60))
    assert "*" in "".join(body)
    assert "a" not in "".join(body)


def test_a_wide_range_is_logarithmic():
    steep = Curve("steep", [(0, 100.0), (100, 0.01)])
    body = cells(drawn([steep, Curve("middle", [(0, 1.0), (100, 1.0)])], 80, height=13))
    assert body[6].endswith("b")  # 1 is halfway between 100 and 0.01


@pytest.mark.parametrize("least", [1.2345e-3, 1.2345e-12, 123456.0, 0.0])
def test_any_number_fits_beside_the_axis(least):
    rows = drawn([Curve("x", [(0, least + 1), (9, least)])], 80)
    assert max(map(len, rows)) == 80


def test_nothing_is_nothing():
    assert drawn([NONE], 80) == []


def test_the_picture_has_all_curves_and_is_xml():
    root = ElementTree.fromstring(curves_svg([FALLING, LEVEL, NONE, POINT], "loss < 1", "updates"))
    names = [each.text for each in root.iter("{http://www.w3.org/2000/svg}text")]
    for name in ("runs/<falling> & co", "level", "none", "point", "loss < 1", "updates"):
        assert name in names
    lines = root.findall(".//{http://www.w3.org/2000/svg}polyline")
    assert len(lines) == 4  # one more for what is beside
    for line in lines:  # all of it inside the frame
        for place in line.attrib["points"].split():
            x, y = map(float, place.split(","))
            assert 60 <= x <= 700
            assert 40 <= y <= 280


@pytest.mark.parametrize(
    "curves", [[NONE, NONE], [POINT, POINT], [LEVEL, NONE], [Curve("x", [], [(1, 2.0), (3, 4.0)])]]
)
def test_little_or_nothing_can_be_drawn(curves):
    ElementTree.fromstring(curves_svg(curves, "t", "x"))

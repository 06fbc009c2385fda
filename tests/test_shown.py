"""How things show themselves: in a terminal, and at the end of a notebook's cell."""

import re
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest

import tapeless
from tapeless import PRESETS, TapelessError
from tapeless.check.lockstep import lockstep
from tapeless.shown import Sheet, Table, Told, as_html, as_text, flops, size
from tapeless.train.doctor import diagnose
from tests.test_model import batch_for, small

VOID = {"br", "hr"}
EVIL = "<script>alert('x')</script> & \"quotes\""


class Reader(HTMLParser):
    """What a browser would show; it refuses elements that are not closed, and whatever comes from elsewhere."""

    def __init__(self, html):
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.text = ""
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        assert tag not in ("script", "link", "img", "style", "iframe")
        assert {name for name, _ in attrs} <= {"style", "open"}
        # Colours of our own would be unreadable on one of dark and light.
        assert not re.search(r"(?<!-)color:(?!inherit)|url\(|background:(?!none)", dict(attrs).get("style") or "")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data + " "


SHEET = Sheet(
    "title",
    [("one", "first"), ("longer", "second")],
    [Table(("name", "bytes"), [("a", "1"), ("b", "1,000")], right=(1,)), Table(("x",), [("inside",)], title="more")],
    ["a remark"],
)


def test_what_frozen_matrices_are_held_in_is_said_with_the_precision():
    how: dict[str, Any] = {"layers": 1, "channels": 16, "lora": 2, "backend": "reference"}
    apart = tapeless.Model("ops-102k", **how, frozen_precision="bfloat16")
    for shown in (repr(apart), repr(apart.plan)):
        assert "in float64 with frozen matrices in bfloat16" in shown
    for given in ({}, {"precision": "bfloat16", "frozen_precision": "bfloat16"}):
        model = tapeless.Model("ops-102k", **(how | given))
        assert "frozen matrices" not in repr(model) + repr(model.plan)


def test_a_sheet_as_text():
    assert as_text(SHEET).splitlines() == [
        "title",
        "  one     first",
        "  longer  second",
        "  name  bytes",
        "  a         1",
        "  b     1,000",
        "  a remark",
    ]


def test_a_sheet_as_html_has_all_of_it_and_folds_what_is_long():
    read = Reader(as_html(SHEET)).text
    for word in ("title", "one", "first", "longer", "name", "1,000", "inside", "more", "a remark"):
        assert word in read
    assert as_html(SHEET).count("<details>") == 1


def test_a_letter_with_a_hat_takes_one_column():
    sheet = Sheet("t", tables=[Table((), [("x\u0302", "a"), ("xy", "b")])])
    assert as_text(sheet).splitlines()[1:] == ["  x\u0302   a", "  xy  b"]


def test_whatever_is_written_in_a_value_is_only_text():
    class Report(Told):
        def __str__(self):
            return EVIL

    evil = Sheet(EVIL, [(EVIL, EVIL)], [Table((EVIL,), [(EVIL,)]), Table((EVIL,), [(EVIL,)], title=EVIL)], [EVIL])
    assert Reader(as_html(evil)).text.count("<script>alert") == 9
    assert EVIL in Reader(Report()._repr_html_()).text
    assert repr(Report()) == EVIL
    assert "<script" not in as_html(evil) + Report()._repr_html_()


@pytest.mark.parametrize("name", PRESETS)
def test_models_their_plans_and_their_steps(name):
    model = small(name)
    for thing in (model, model.plan, model.explain(), model.explain(1)):
        read = Reader(thing._repr_html_()).text
        assert f"{model.parameters:,} parameters" in repr(thing)
        assert f"{model.parameters:,} parameters" in read
        assert repr(thing) == str(thing)
    assert "\n  runs     on reference in float64, in " in repr(model)
    assert f"{model.plan.peak_bytes:,} bytes" in repr(model.plan)


def test_an_explanation_has_every_result_of_every_call_of_the_block():
    model = small(layers=5)
    shown = repr(model.explain(2))
    assert all(line.startswith((" ", "FORWARD", "BACKWARD")) or not line for line in shown.splitlines()[3:])
    numbers = [int(found[1]) for found in re.finditer(r"^ +(\d+)  \w", shown, re.MULTILINE)]
    calls = model.program.calls
    assert numbers == [number for number, call in enumerate(calls) if call.section == "blocks.2"]
    assert "blocks.1 … blocks.3: calls" in repr(model.explain())
    assert "blocks.3 … blocks.1: calls" in repr(model.explain())
    assert "…" not in repr(small(layers=3).explain())
    for wrong in (5, -1, 1.5, "0", True):
        with pytest.raises(TapelessError, match=r"there is no layer .*: this model has layers 0 to 4"):
            model.explain(wrong)


def test_what_a_trace_gives_is_readable():
    model = small()
    inputs, targets = batch_for(model)
    made = {call.title: repr(call) for call, _ in model.trace(inputs, targets)}
    assert made["gelu.backward"].startswith("<gelu.backward (blocks.0, backward, feed_forward.py:")
    assert made["gelu.backward"].endswith("writes dx=blocks.0.mlp.dup; reads dy=blocks.0.mlp.dact, x=blocks.0.mlp.up>")
    for thing in (*model.program.buffers, *model.program.calls, model.program):
        assert len(repr(thing)) < 500
    assert repr(model.program).startswith(f"<program of {len(model.program.calls)} calls (1 zero, ")
    assert "<gradient gradients " in {repr(each)[:20] for each in model.program.buffers}


def test_a_step_says_what_came_of_it():
    model = small()
    inputs, targets = batch_for(model)
    stepped = model.step(inputs, targets, lr=1e-3)
    assert re.fullmatch(r"<loss \d\.\d+, gradient norm [\d.]+>", repr(stepped))
    assert "1 update made" in repr(model)
    model.step(inputs, targets, lr=1e-3)
    assert repr(stepped) == "<a step that the model has left behind>"


def test_reports_are_what_they_print():
    wrong = tapeless.check.op(lambda x: x * x, lambda dy, x: dy * x, np.array([1.0, 2.0]))
    assert repr(wrong) == str(wrong)
    assert "is not the derivative" in Reader(wrong._repr_html_()).text
    model, reference = small(backend="cpu"), small()
    differences = list(lockstep(model, reference, *batch_for(model)))
    assert repr(differences[0]) == str(differences[0])
    assert len(repr(differences)) < 300 * len(differences)


def test_a_diagnosis_reads_in_a_terminal_and_in_a_notebook():
    lines = [{"kind": "step", "step": n, "loss": 3.0, "gradient_norm": 1.0, "lr": 1e-3} for n in range(20)]
    found = diagnose(lines)
    assert found[0].sentence in repr(found)
    assert found[0].sentence in Reader(found._repr_html_()).text
    assert all(each.sentence in repr(found) for each in found)


@pytest.mark.parametrize(("count", "said"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 << 50, "3072.0 TiB")])
def test_sizes(count, said):
    assert size(count) == said
    assert flops(1e15) == "1 PFLOP"

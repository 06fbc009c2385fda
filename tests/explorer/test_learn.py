"""The lessons: their numbers are the engine's, their page asks before it tells, and what was done is remembered."""

import json
from typing import Any

import numpy as np
import pytest

from tapeless import Model, TapelessError
from tapeless.check.planted import PLANTED
from tapeless.explorer.keys import path_keys
from tapeless.explorer.laboratory import landscape, path_losses, pathologies, planted
from tapeless.explorer.lesson import exercises, lesson, moved
from tapeless.explorer.pupil import Pupil
from tapeless.explorer.school import OWN_TEXTS, School, texts
from tapeless.tasks.operations import ExpressionReader
from tapeless.train.history.record import read_record
from tapeless.train.session import start
from tapeless.train.settings import Request, Settings
from tests.explorer.browser import expect, shows
from tests.explorer.serving import served, trained
from tests.explorer.test_pages import chromium, pytestmark, visit  # noqa: F401 (fixtures)
from tests.explorer.test_server import WITH_TOKEN

CHAPTERS = (
    *("begins", "output", "blocks", "attention", "norm", "words", "update", "path", "wrong", "practice", "bug"),
    "questions",
)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("runs") / "run")


@pytest.fixture(scope="module")
def server(run):
    with served(run) as found:
        yield found


def test_a_lesson_is_what_the_engine_computes(run):
    found = lesson(Pupil.of(run), 2, "Max(1,6,2)")
    assert found["steps"][2] == 2
    model = Model("ops-102k", batch=1, backend="reference", layers=2, channels=8, heads=2, optimizer=None)
    for name, values in Pupil.of(run).kept.weights[2].items():
        model.write(name, values)
    expression = ExpressionReader().expressions("Max(1,6,2)")
    assert found["loss"] == model.forward_backward(expression.tokens, expression.answers)
    slope = np.array(found["likely"])
    slope[found["target"]] -= 1
    assert found["slope"] == pytest.approx(slope, abs=1e-15)
    assert found["head"]["dweight"] == pytest.approx(model.grads["head.weight"][8, :6], abs=1e-15)
    assert sum(found["head"]["terms"]) == pytest.approx(found["head"]["dx"][0], abs=1e-15)
    assert found["repeated"]["word"] == ","
    assert np.sum(found["repeated"]["parts"], axis=0) == pytest.approx(model.grads["tokens.weight"][19, :6], abs=1e-15)
    assert found["check"]["complex_step"] == pytest.approx(found["check"]["backward"], rel=1e-12)
    assert min(found["check"]["errors"]["float64"]) < 1e-8 < max(found["check"]["errors"]["float64"])
    update = found["update"]
    assert update["sgd"]["value"] == update["value"] - update["lr"] * update["gradient"]
    assert abs(update["adam"]["value"] - update["value"]) == pytest.approx(update["lr"], rel=1e-6)


def test_without_a_run_the_untrained_model_teaches(tmp_path):
    found = School([tmp_path]).lesson(7, "")
    assert (found["steps"], found["at"], found["question"]) == ([0], 0, "Max(1,6,2)")
    assert found["parameters"] == 102_016


def test_the_exercises_are_worked_out():
    found = exercises()
    worked = {each["name"]: each["rows"] for each in found["hand"]}
    assert worked["∂loss/∂y"] == [[pytest.approx(-0.52)]]
    assert worked["∂loss/∂W₁"] == [[pytest.approx(-0.624), 0], [pytest.approx(-0.312), 0]]
    assert found["optimizers"]["momentum"][-1] == pytest.approx(0.5129083)
    assert found["optimizers"]["adamw"][-1] == pytest.approx(0.549685368077207409, rel=1e-14)
    assert found["quadratic"]["2.1"][-1] == pytest.approx(-4.7812273803)
    assert moved("sgd", 1.0, (0.5,), 0.1)[0]["value"] == 0.95


def test_the_landscape_holds_the_path(run):
    found = landscape(str(run))
    assert found["path"][0] == [pytest.approx(0), pytest.approx(0)]
    assert found["path"][-1][1] == pytest.approx(0, abs=1e-9)
    x, y = found["x"], found["y"]
    assert all(x[0] < a < x[-1] and y[0] < b < y[-1] for a, b in found["path"])
    nearest = np.array(found["losses"])[np.abs(np.array(y)).argmin(), np.abs(np.array(x)).argmin()]
    assert nearest == pytest.approx(found["on_path"][0], rel=0.3)


def test_gradients_go_wrong_as_the_lessons_say():
    found = pathologies()
    post, pre = found["vanishing"].values()
    assert post[0] / post[-1] < 0.01 < pre[0] / pre[-1]
    healthy, large = found["exploding"].values()
    assert large[0] / large[-1] > 100 > healthy[0] / healthy[-1]
    assert not any(found["dead"]["units"][: found["dead"]["dead"]])
    assert any(found["dead"]["units"][found["dead"]["dead"] :])


@pytest.mark.parametrize("number", range(len(PLANTED)))
def test_every_planted_bug_shows_where_it_is(number):
    found = planted(str(number))
    bug = PLANTED[number]
    wrong = [call for call in found["calls"] if call["error"] > 1e-9]
    assert wrong[0]["call"] == found["begins"]
    assert wrong[0]["op"] == bug.where
    assert found["choices"][found["right"]] == bug.what
    assert len(set(found["choices"])) == 4


@pytest.mark.parametrize(
    "path",
    [
        "lesson?at=-1",
        "lesson?at=1001",
        "lesson?at=x",
        "lesson?at=1&at=2",
        "lesson?run=0",
        "planted?number=-1",
        "planted?number=1e9",
        "planted?number=relu",
        "planted?name=relu-passes-all",
        "landscape?folder=/etc",
        "pathologies?x=1",
        "exercises?y=2",
        "laboratory",
        "..%2flesson",
        "lesson/",
        "landscape/0",
    ],
)
def test_hostile_questions_are_refused(server, path):
    status, _, body = server.ask(f"/api/learn/{path}", WITH_TOKEN)
    assert 400 <= status < 500, body
    assert len(body) < 500
    for known in ("lesson", "planted", "landscape", "pathologies", "exercises"):
        status, _, body = server.ask(f"/api/learn/{known}")
        assert status == 403
        assert b"loss" not in body


def test_what_is_computed_apart_is_computed_once_and_fails_in_a_sentence(server, run):
    first = server.get("/api/learn/planted?number=3")
    assert first["name"] == PLANTED[3].name
    assert server.get("/api/learn/planted?number=3") == first
    assert len(server.get("/api/learn/landscape")["path"]) == len(Pupil.of(run).steps)
    with served(run.parent) as nothing:
        assert "there is no path to look at yet" in nothing.get("/api/learn/landscape")["error"]


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_every_chapter_opens_for_everybody(server, visit, width, scheme):  # noqa: F811
    from axe_core_python.sync_playwright import Axe

    page = visit(server, width, 800, scheme)
    page.click("#to-learn")
    for chapter in CHAPTERS if width > 1000 else ("attention", "path", "practice"):
        page.click(f"[data-chapter={chapter}]")
        page.locator("#lesson h2", has_text=f"{CHAPTERS.index(chapter) + 1}. ").wait_for(timeout=120_000)
        for button in page.locator(".predict button.quiet:visible").all():
            button.click()
        assert page.evaluate("() => document.documentElement.scrollWidth") <= width, chapter
        judged = Axe().run(page)
        assert [(each["id"], each["nodes"][0]["html"][:200]) for each in judged["violations"]] == [], chapter
        for canvas in page.locator("#lesson canvas:visible").all():
            assert canvas.get_attribute("aria-label"), chapter
    page.context.close()


def test_a_reader_predicts_computes_finds_and_is_remembered(server, visit):  # noqa: F811
    page = visit(server)
    page.click("#to-learn")
    slope = page.locator("[data-predict^=begins-slope]")
    found = server.get("/api/learn/lesson")
    slope.locator("input").fill("0.5")
    page.keyboard.press("Enter")
    shows(slope, "look at the sign")
    expect(slope.locator("canvas")).to_be_hidden()
    slope.locator("input").fill(f"{found['slope'][found['target']]:.4f}")
    page.keyboard.press("Enter")
    slope.locator("canvas").wait_for()
    page.click("[data-chapter=blocks]")
    page.locator("[data-predict^=blocks-weak] .reveal").click()
    shows(page.locator("#lesson"), "post-norm, so after each addition a LayerNorm stands on that path too")
    page.click("[data-chapter=practice]")
    page.locator("#by-hand form").first.wait_for()
    fields = page.locator("#by-hand form").first.locator("input")
    fields.nth(0).fill("1.3")
    fields.nth(1).fill("0.3")
    page.keyboard.press("Enter")
    shows(page.locator("#by-hand form").first, "✗")
    fields.nth(1).fill("−0,3")  # a decimal comma is a decimal comma in every field
    page.keyboard.press("Enter")
    shows(page.locator("#by-hand form").first, "✓")
    momentum = page.locator("[data-predict=practice-momentum]")
    for given, mark in (("0.5", "✗"), ("0,5027", "✓")):
        momentum.locator("input").fill(given)
        page.keyboard.press("Enter")
        shows(momentum, mark)
    page.click("[data-chapter=bug]")
    page.locator("#bug-calls button").first.wait_for()
    expect(page.locator("#bug-calls .bug-bar:visible")).to_have_count(0)  # the sizes alone, at first
    page.click("#bug-compare")
    page.locator("#bug-calls button", has_text="25 classifier").click()
    shows(page.locator("#lesson"), "call 25 is right")
    page.locator("#bug-calls button", has_text="29 relu").click()
    page.get_by_text("It begins at call 29").wait_for()
    rows = page.locator("#bug-calls button").evaluate_all(
        "all => all.map(each => [each.lastChild.textContent, each.querySelector('i').getBoundingClientRect().width])"
    )
    widths = dict(rows)
    assert all(widths[said] == pytest.approx(wide, abs=6) for said, wide in rows)  # one number, one length
    kept = json.loads(page.evaluate("() => localStorage.getItem('tapeless-learn')"))
    assert {"hand-0": "right", "bug-where-0": "right"}.items() <= kept.items()
    page.reload()
    page.wait_for_selector("html[data-ready]")
    page.locator("#learn-done", has_text="2 predicted rightly so far").wait_for()
    page.context.close()


@pytest.fixture(scope="module")
def ten_seeds(tmp_path_factory):
    """Ten trainings, short ones and longer ones, pre-norm and post-norm."""
    parent, found = tmp_path_factory.mktemp("seeds"), []
    for seed in range(10):
        how: dict[str, Any] = {"batch": 24, "lr": 3e-3, "record": 1000, "backend": "reference", "eval_every": 100}
        model = {"layers": 2, "channels": 8, "heads": 2, "placement": ("post", "pre")[seed % 2]}
        settings = Settings(data="operations", steps=(6, 12, 48)[seed % 3], seed=seed, **how)
        start(Request("ops-102k", model, settings), parent / str(seed)).train()
        found.append(parent / str(seed))
    return found


def test_the_marked_answer_is_true_on_ten_seeds(ten_seeds):
    """Each key against a definition of its own; a question is left out where no answer is clearly true."""
    asked = set()
    for run in ten_seeds:
        pupil = Pupil.of(run)
        steps, losses = pupil.steps, path_losses(pupil)
        keys = path_keys(steps, losses)
        assert keys["path-shape"] == (2 if losses[-1] >= losses[0] else int(sorted(losses, reverse=True) != losses))
        if "path-when" in keys:
            end = steps[-1]
            first, last = [(0, min(10, end)), (10, 0.75 * steps[-1]), (0.75 * steps[-1], steps[-1])][keys["path-when"]]
            begin = max(at for at, step in enumerate(steps) if step <= first)
            end = min(at for at, step in enumerate(steps) if step >= last)
            assert losses[begin] - losses[end] > 0.5 * (losses[0] - losses[-1]), (steps, losses)
        for at in (0, len(steps) - 1):
            found = lesson(pupil, at, "")
            keys |= {f"{name} {at}": key for name, key in found["keys"].items()}
            relu = np.mean([call["zeros"] for call in found["back"] if call["op"] == "relu"])
            assert found["keys"]["blocks-relu"] == np.digitize(relu, [0.25, 0.75])
            ratios = {c["call"]: c["writes"] / c["reads"] for c in found["back"] if c["writes"] and c["reads"]}
            weakest = next(c for c in found["back"] if c["call"] == min(ratios, key=ratios.__getitem__))
            assert (
                sorted({c["op"] for c in found["back"] if c["call"] in ratios})[found["keys"]["blocks-weak"]]
                == (weakest["op"])
            )
            update, check = found["update"], found["check"]
            if "update-adam" in found["keys"]:
                assert abs(update["adam"]["value"] - update["value"]) == pytest.approx(update["lr"], rel=0.05)
            if "update-eps" in found["keys"]:
                errors = check["errors"]["float64"]
                assert min(errors[1:-1]) < 0.1 * min(errors[0], errors[-1])
            error = check["errors"]["float64"][4] / abs(check["backward"])
            least, most = [(0, 1e-8), (1e-8, 1e-3), (1e-3, np.inf)][found["keys"]["practice-tolerance"]]
            assert least <= error <= most
            yes = found["back"][-1]["reads"] < 0.1 * found["back"][0]["writes"]
            assert found["keys"]["practice-own"] == (0 if yes else 1)
            if "begins-sign" in found["keys"]:
                assert [n for n, value in enumerate(found["slope"]) if value < 0] == [found["target"]]
        asked |= {name.split()[0] for name in keys}
    assert len(asked) == 9  # every one of them is asked of some run


def test_late_noise_is_not_when_a_model_learns_the_most():
    steps, losses = [0, 5, 10, 100, 400, 600, 900, 999, 1000], [3.0, 2.9, 2.8, 1.0, 0.1, 1e-2, 1e-3, 1e-3, 1e-5]
    assert path_keys(steps, losses) == {
        "path-shape": 1 if sorted(losses, reverse=True) != losses else 0,
        "path-when": 1,
    }
    assert path_keys([0, 5, 10, 12], [3.0, 2.0, 1.0, 0.5])["path-when"] == 0
    assert "path-when" not in path_keys([0, 5, 20], [3.0, 2.0, 1.0])  # between the fifth and the twentieth: who knows
    assert "path-when" not in path_keys([0, 5, 10], [1.0, 2.0, 1.5])


def test_attention_and_layernorm_are_taken_apart_as_the_engine_computes_them(run, ten_seeds):
    for found in (*(lesson(Pupil.of(run), at, "") for at in (0, 2, 4)), lesson(Pupil.of(ten_seeds[1]), 2, "")):
        a, n = found["attention"], found["norm"]
        p, dp, ds = (np.array(a[name]) for name in ("p", "dp", "ds"))
        assert p.sum(axis=1) == pytest.approx(1)
        jacobian = p[:, :, None] * (np.eye(len(p)) - p[:, None, :])
        assert ds == pytest.approx(np.einsum("ijk,ij->ik", jacobian, dp), abs=1e-15)
        assert ds.sum(axis=1) == pytest.approx(0, abs=1e-15)
        query, key = a["query"], a["key"]
        assert ds[query] @ a["k"] * a["scale"] == pytest.approx(a["dq"], rel=1e-9, abs=1e-15)
        assert ds[:, key] @ a["q"] * a["scale"] == pytest.approx(a["dk"], rel=1e-9, abs=1e-15)
        assert p[:, key] @ a["dy"] == pytest.approx(a["dv"], rel=1e-9, abs=1e-15)
        x, g = np.array(n["x"]), np.array(n["g"])
        assert n["rstd"] * (g - n["mean"] - x * n["along"]) == pytest.approx(n["dx"], rel=1e-9, abs=1e-15)
        assert n["sum"] == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(
    "fields", [{}, {"recompute": True}, {"placement": "pre"}, {"lean": False}, {"kv_heads": 1, "norm_kind": "rmsnorm"}]
)
def test_a_call_has_one_number_in_every_view(tmp_path, fields):
    run = trained(tmp_path / "run", steps=1, backend="reference", **fields)
    calls = read_record(run / "record.jsonl").header.calls
    recorded = [(call["call"], call["op"]) for call in calls if call["phase"] == "backward"]
    assert [(call["call"], call["op"]) for call in lesson(Pupil.of(run), 0, "")["back"]] == recorded


def test_a_teacher_changes_the_lessons(tmp_path, monkeypatch):
    ours = texts()["en"]
    assert set(ours) == set(CHAPTERS)
    (tmp_path / "de").mkdir()
    (tmp_path / "de" / "words.md").write_text("# Ein Wort, das zweimal steht\n")
    monkeypatch.setenv(OWN_TEXTS, str(tmp_path))
    assert texts()["de"]["words"] == "# Ein Wort, das zweimal steht\n"
    assert texts()["en"] == ours
    (tmp_path / "de" / "words.md").write_text("x" * 200_001)
    with pytest.raises(TapelessError, match="too long for a lesson"):
        texts()
    monkeypatch.setenv(OWN_TEXTS, str(tmp_path / "nowhere"))
    with pytest.raises(TapelessError, match="which is no folder"):
        texts()

"""A report: one file that opens without a server, asks nothing of anybody, and runs nothing that a run folder says."""

import json
import shutil

import numpy as np
import pytest

from tapeless.errors import TapelessError
from tapeless.explorer.export import EXPORT, bundled, report, save_report
from tapeless.explorer.server import pages
from tapeless.explorer.source import thinned
from tapeless.train.history.record import LEAD, read_record
from tapeless.train.metrics import read_metrics
from tests.explorer.browser import expect, shows
from tests.explorer.serving import trained
from tests.explorer.test_pages import BROWSER, chromium, short  # noqa: F401 (a fixture)

EVIL = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("runs") / "run")


@pytest.mark.skipif(BROWSER is None, reason="no browser: install chromium, or name one in TAPELESS_BROWSER")
def test_a_report_opens_as_a_file_and_shows_every_view(tmp_path, run, chromium):  # noqa: F811
    other = tmp_path / EVIL
    shutil.copytree(run, other)
    with (other / "metrics.jsonl").open("a") as file:
        file.write(
            json.dumps({"kind": "stop", "step": 12, "reason": f"</script><script>alert(1)</script>{EVIL}"}) + "\n"
        )
    size = save_report([run, other], tmp_path / "report.html")
    assert size == (tmp_path / "report.html").stat().st_size < 5_000_000
    context = chromium.new_context(viewport={"width": 1280, "height": 800})
    page, complaints, asked = context.new_page(), [], []
    page.on("console", lambda said: complaints.append(said.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto((tmp_path / "report.html").as_uri())
    page.wait_for_selector("html[data-ready=yes]")
    last = [line for line in read_metrics(run) if line["kind"] == "step"][-1]
    shows(page.locator("#chart-loss ~ .readout"), f"run: {short(last['loss'])} at step 12")
    page.locator("canvas[aria-label^='run: gradient that leaves']").wait_for()
    page.click("#replay-play")
    page.click("#replay-skip")
    shows(page.locator("#replay-said"), " = ")
    expect(page.locator("#replay-ask")).to_be_hidden()
    page.click("#to-flow")
    page.locator("button.call .value:not(:empty)").first.wait_for(state="attached")
    page.click("#to-memory")
    page.locator("#memory-total strong").wait_for()
    page.fill("#memory-batch", "400")
    page.keyboard.press("Enter")
    page.get_by_text("This page was saved as one file").wait_for()
    page.click("#to-trace")
    page.locator(".digits").first.wait_for()
    expect(page.locator("#trace-step option")).to_have_text(["1, from the first weights", "5", "9"])  # 13 was not made
    page.click("#to-attention")
    page.locator("main canvas:visible").first.wait_for()
    page.click("#to-learn")
    page.locator("#lesson h2", has_text="1. ").wait_for()
    page.select_option("#learn-at", "3")
    page.locator("#lesson", has_text="after 3 updates").wait_for()
    expect(page.locator("img")).to_have_count(0)
    expect(page.locator("script")).to_have_count(2)
    shows(page.locator("#runs"), EVIL)
    assert (complaints, len(asked)) == ([], 1)
    context.close()


def test_reports_of_other_kinds_of_runs_have_what_their_pages_ask_for(kinds):
    made = report([kinds["chat"], kinds["labels"]])
    found = json.loads(made.partition('id="answers">')[2].partition("</script>")[0])
    assert found["/api/runs/0/story"]["moments"]
    ours = {address: answer for address, answer in found.items() if address.startswith("/api/runs/0/")}
    assert not [address for address, answer in ours.items() if answer.get("error")]
    assert "did not learn from text" in found["/api/runs/1/story"]["error"]
    assert found["/api/runs/1/record"]["rows"] == 4


def test_nothing_is_written_over_and_nothing_half(tmp_path, run):
    (tmp_path / "report.html").write_text("mine")
    with pytest.raises(TapelessError, match=r"report.html exists already: choose another name"):
        save_report([run], tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text() == "mine"
    (tmp_path / "link.html").symlink_to(tmp_path / "nowhere")
    with pytest.raises(TapelessError, match=r"exists already"):
        save_report([run], tmp_path / "link.html")
    with pytest.raises(TapelessError, match=r"is not a folder"):
        save_report([run], tmp_path / "no" / "report.html")


def test_a_report_of_a_run_that_is_damaged_says_so(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").touch()
    made = report([tmp_path / "run"])
    assert "it has no config.toml" in made
    assert "default-src 'none'" in made


def test_without_a_run_there_is_no_report(tmp_path, run):
    (tmp_path / "empty").mkdir()
    with pytest.raises(TapelessError, match=r"empty holds no run: give the folder of one"):
        save_report([run, tmp_path / "empty"], tmp_path / "report.html")
    assert [each.name for each in tmp_path.iterdir()] == ["empty"]


def test_the_modules_are_one_script(run):
    known = {address.removeprefix("/"): content.decode() for address, (_, content) in pages().items()}
    script = bundled(known)
    assert not [line for line in script.splitlines() if line.startswith(("import ", "export "))]
    assert set(EXPORT.findall(known["api.js"])) == set(EXPORT.findall(known["sealed.js"]))
    unused = [name for name in known if name.endswith(".js") and f"const {name[:-3]}_module" not in script]
    assert unused == ["sealed.js"]  # it is in it under the name of api.js


def test_of_a_long_record_the_spikes_stay(run):
    record = read_record(run / "record.jsonl")
    rows = np.tile(record.rows[:1], (1000, 1))
    rows[:, 0] = np.arange(1, 1001)
    rows[637, LEAD.index("gradient norm")] = 9e9
    rows[638, LEAD.index("gradient norm")] = np.nan
    from dataclasses import replace

    few = thinned(replace(record, rows=rows), 50 * 4 * record.header.width)
    assert len(few.rows) <= 52
    assert {1, 639, 1000} <= set(few.steps.tolist())
    assert thinned(record, None) is record

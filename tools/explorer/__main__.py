"""`make twins`: two models of 24 layers, alike but for where their norms stand, trained without warm-up and recorded.
With `--pictures`, `make explorer-pictures`: the views of these and of the teaching model, for docs/explorer.md.

python -m tools.explorer --folder runs      # runs that lie there already are not trained again
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "docs" / "explorer"
TWIN = [
    "ops-102k",
    "--set",
    "layers=24",
    "--set",
    "channels=32",
    "--set",
    "heads=4",
    "--warmup",
    "0",
    "--steps",
    "400",
    "--record",
    "4",
]
RUNS = {
    "post-norm": (*TWIN, "--set", "placement=post"),
    "pre-norm": (*TWIN, "--set", "placement=pre"),
    "teaching": ("ops-102k", "--set", "keep=12"),
}
SHOTS = (  # name, view, runs, width, height, light or dark
    ("replay", "replay", ("teaching",), 1280, 800, "light"),
    ("run", "run", ("post-norm", "pre-norm"), 1280, 1180, "light"),
    ("flow", "flow", ("teaching",), 1280, 1560, "light"),
    ("memory", "memory", ("teaching",), 1280, 800, "light"),
    ("learn", "learn", ("teaching",), 1280, 800, "light"),
    ("memory-phone", "memory", ("teaching",), 390, 844, "dark"),
    ("attention", "attention", ("teaching",), 1280, 900, "light"),
    ("attention-phone", "attention", ("teaching",), 390, 1240, "dark"),
    ("trace", "trace", ("teaching",), 1280, 1690, "light"),
    ("trace-phone", "trace", ("teaching",), 390, 1500, "dark"),
)
READY = {
    "replay": "#replay-skip:visible",
    "run": "#heat-readout:not(:empty)",
    "flow": "button.call .value:not(:empty)",
    "memory": "#memory-total strong",
    "trace": ".digits",
    "attention": "#attention-head:not(:empty)",
    "learn": "#lesson h2",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("runs"))
    parser.add_argument("--pictures", action="store_true")
    options = parser.parse_args()
    wanted = list(RUNS) if options.pictures else ["post-norm", "pre-norm"]
    for name in wanted:
        folder = options.folder / name
        if not (folder / "config.toml").exists():
            command = [sys.executable, "-m", "tapeless", "train", *RUNS[name], "--threads", "1", "--out", str(folder)]
            subprocess.run(command, check=True)
    folders = " ".join(str(options.folder / name) for name in wanted)
    if options.pictures:
        take_pictures(options.folder)
    else:
        print(f"\nsee them: tapeless explore {folders}")
    return 0


def take_pictures(parent: Path) -> None:
    from playwright.sync_api import sync_playwright
    from tests.explorer.browser import found
    from tests.explorer.serving import served

    executable = found()
    if executable is None:
        raise SystemExit("no browser: install chromium, or name one in TAPELESS_BROWSER.")
    PICTURES.mkdir(exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        for name, view, runs, width, height, scheme in SHOTS:
            with served(*(parent / run for run in runs)) as server:
                dark = scheme == "dark"
                context = browser.new_context(
                    viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light"
                )
                page = context.new_page()
                page.goto(server.address)
                page.wait_for_selector("html[data-ready]")
                if view != "replay":
                    page.click(f"#to-{view}")
                page.locator(READY[view]).first.wait_for(state="attached")
                if view == "replay":
                    page.locator(".replay-happens", has_text="goes back through every call").wait_for()
                    page.wait_for_timeout(1300)  # in the middle of the way back, and there it stays
                    page.evaluate("() => { const now = performance.now(); performance.now = () => now; }")
                elif view == "learn":
                    page.click("[data-chapter=attention]")
                    page.locator("#lesson h2", has_text="4. ").wait_for()
                    page.locator("#lesson table").first.wait_for()
                elif view == "memory":
                    page.focus("#arena")
                    for _ in range(3):
                        page.keyboard.press("ArrowRight")
                elif view == "flow":
                    page.locator("button.call", has_text="linear").nth(3).click()
                    for computed in ("#highway-told:not(:empty)", "#flow-numbers math"):
                        page.locator(computed).first.wait_for()
                    page.evaluate("() => scrollTo(0, 0)")
                elif view == "attention":
                    steps = int(page.locator("#attention-step").get_attribute("max") or 0)
                    last = page.locator("#attention-at").inner_text()
                    page.locator("#attention-step").fill(str(steps * 3 // 5))  # while it learns
                    page.wait_for_function(
                        "was => document.getElementById('attention-at').textContent !== was", arg=last
                    )
                elif view == "run":
                    canvas = page.locator("canvas[aria-label*='gradient that leaves']").first
                    canvas.click(position={"x": 400, "y": 250})
                page.screenshot(path=PICTURES / f"{name}.png")
                context.close()
                print(PICTURES / f"{name}.png")
        browser.close()


if __name__ == "__main__":
    sys.exit(main())

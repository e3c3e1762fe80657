"""The page in a real Chromium: no errors, no foreign requests, keyboard, phone, all it can do."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("playwright", reason="playwright, which drives the browser, is not installed")

from playwright.sync_api import Browser, Page, expect

from fedmeta.models.meta_model import MetaModel
from ui.browsing import CHROMIUM, chromium, serving, visiting

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on this machine"),
]

PHONE: dict[str, Any] = {"viewport": {"width": 360, "height": 740}, "color_scheme": "dark"}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def address(runs: Path) -> Iterator[str]:
    with serving(runs) as address:
        yield address


@pytest.fixture
def page(browser: Browser, address: str) -> Iterator[Page]:
    with visiting(browser, address, reduced_motion="reduce") as page:
        yield page


def test_from_the_list_to_an_adapted_model(page: Page, tmp_path: Path) -> None:
    page.goto("/")
    page.get_by_role("link", name="digits", exact=True).click()
    expect(page.locator("#reached svg")).to_be_visible()
    page.locator(".nodes a").first.click()
    expect(page.locator("#support canvas").first).to_be_visible()
    page.get_by_label("steps").fill("2")
    page.get_by_role("button", name="Adapt").click()
    expect(page.locator("#position")).to_have_text("after step 2 of 2")
    expect(page.locator("#before")).to_have_text(re.compile(r"\d+\.\d\s%"))
    tiles = page.locator("#query .sample")
    assert tiles.count() == page.locator("#query .right, #query .wrong").count() > 0
    with page.expect_download() as download:
        page.get_by_role("link", name="Download").click()
    download.value.save_as(tmp_path / "mine.safetensors")
    MetaModel.load(tmp_path / "mine.safetensors")


def test_from_a_sequence_to_an_adapted_model(browser: Browser, tasks: Path) -> None:
    with (
        serving(tasks) as address,
        visiting(browser, address, reduced_motion="reduce", **PHONE) as page,
    ):
        page.goto("/")
        page.get_by_role("link", name="two", exact=True).click()
        expect(page.locator("table.matrix")).to_have_count(2)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        page.get_by_role("link", name="two/replay/seed-0/2-2-3").click()
        page.get_by_role("link", name="Watch it adapt").click()
        page.get_by_role("button", name="Adapt").click()
        expect(page.locator("#position")).to_have_text("after step 5 of 5")
        expect(page.locator("#query .right, #query .wrong").first).to_be_visible()
        page.get_by_role("link", name="two", exact=True).click()
        expect(page.locator("#matrices")).to_be_visible()


def test_steps_can_be_walked_by_keyboard_alone(page: Page) -> None:
    page.goto("/adapt/digits")
    page.get_by_role("button", name="Adapt").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#position")).to_have_text("after step 5 of 5")
    after = page.locator("#query .said").all_inner_texts()
    page.get_by_role("slider").focus()
    page.keyboard.press("Home")
    expect(page.locator("#position")).to_have_text("the meta-model as it arrives")
    assert page.locator("#before").inner_text() == page.locator("#after").inner_text()
    assert page.locator("#query .changed").count() == 0
    for number in range(1, 6):
        page.keyboard.press("ArrowRight")
        expect(page.locator("#position")).to_have_text(f"after step {number} of 5")
    assert page.locator("#query .said").all_inner_texts() == after


def test_the_first_stop_of_the_keyboard_leads_to_the_content(page: Page) -> None:
    page.goto("/run/digits")
    page.keyboard.press("Tab")
    expect(page.locator(":focus")).to_have_text("To the content")
    reached = []
    for _ in range(8):
        page.keyboard.press("Tab")
        reached.append(page.locator(":focus").inner_text())
    assert "Watch it adapt" in reached


def test_another_device_is_chosen(page: Page) -> None:
    page.goto("/adapt/digits")
    field = page.get_by_label("Device")
    last = field.locator("option").last.inner_text()
    field.select_option(last)
    expect(page.locator("[aria-current=page]")).to_have_text(last)


def test_runs_are_found_and_compared(page: Page) -> None:
    page.goto("/")
    expect(page.get_by_role("button", name="Compare")).to_be_disabled()
    page.get_by_label("Find a run").fill("digits finished")
    expect(page.locator("#found")).to_have_text("2 of 7")
    for name in ("digits", "group/other"):
        page.get_by_label(f"Compare {name}").check()
    page.get_by_role("button", name="Compare").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Two runs side by side")
    expect(page.locator("#reached polyline")).to_have_count(2)


def test_a_function_is_drawn(page: Page) -> None:
    page.goto("/adapt/waves")
    page.get_by_role("button", name="Adapt").click()
    expect(page.locator("#position")).to_have_text("after step 5 of 5")
    expect(page.locator("#function polyline")).to_have_count(2)


def test_a_table_is_brought(page: Page, work: Path) -> None:
    page.goto("/own/table")
    expect(page.get_by_role("button", name="Adapt")).to_be_disabled()
    page.locator("#files").set_input_files(work / "mine.csv")
    expect(page.locator("#own .sample")).to_have_count(12)
    page.get_by_role("button", name="Adapt").click()
    expect(page.locator("#position")).to_have_text("after step 5 of 5")
    expect(page.locator("#query .sample")).to_have_count(6)
    expect(page.get_by_role("link", name="Download")).to_be_visible()


def test_files_are_dropped(page: Page, work: Path) -> None:
    page.goto("/own/table")
    text = (work / "mine.csv").read_text()
    dropped = page.evaluate_handle(
        """(text) => {
          const files = new DataTransfer();
          files.items.add(new File([text], "dropped.csv"));
          return files;
        }""",
        text,
    )
    page.dispatch_event("#drop", "drop", {"dataTransfer": dropped})
    expect(page.locator("#own .name").first).to_have_text("dropped.csv, row 1")


def test_images_are_brought_and_labelled(page: Page, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    for number in range(3):
        pixels = np.random.default_rng(number).integers(0, 255, (20, 20), np.uint8)
        image.fromarray(pixels).save(tmp_path / f"{number}.png")
    page.goto("/own/digits")
    page.locator("#files").set_input_files([tmp_path / f"{number}.png" for number in range(3)])
    expect(page.locator("#own canvas")).to_have_count(3)
    page.get_by_label("Label of 0.png").select_option("7")
    page.get_by_label("Label of 1.png").select_option("3")
    page.get_by_label("Use of 2.png").select_option("test")
    page.get_by_role("button", name="Adapt").click()
    expect(page.locator("#position")).to_have_text("after step 5 of 5")
    expect(page.locator("#query .truth")).to_contain_text("label unknown")


def test_what_is_wrong_with_a_file_is_told(browser: Browser, address: str, tmp_path: Path) -> None:
    (tmp_path / "bad.csv").write_text("a,b\n1,2\n")
    (tmp_path / "large.csv").write_bytes(b"x" * (17 * 2**20))
    with visiting(browser, address, forgiven="422") as page:
        page.goto("/own/table")
        page.locator("#files").set_input_files(tmp_path / "bad.csv")
        expect(page.get_by_role("alert")).to_contain_text("bad.csv has no column 'width'")
    with visiting(browser, address) as page:
        page.goto("/own/table")
        page.locator("#files").set_input_files(tmp_path / "large.csv")
        expect(page.get_by_role("alert")).to_contain_text("large.csv has more than 16 MB")


def test_a_run_is_watched_while_it_goes_on(browser: Browser, runs: Path, tmp_path: Path) -> None:
    going = tmp_path / "runs/going"
    shutil.copytree(runs / "digits", going)
    lines = (going / "metrics.jsonl").read_text().splitlines(keepends=True)
    summary = (going / "summary.json").read_text()
    (going / "summary.json").unlink()
    (going / "metrics.jsonl").write_text(lines[0])
    with (
        serving(tmp_path / "runs") as address,
        visiting(browser, address) as page,
        (going / "metrics.jsonl").open("a") as file,
    ):
        page.goto("/run/going")
        expect(page.locator("#live")).to_have_text("round 1 of 3")
        file.write(lines[1] + lines[2][:20])
        file.flush()
        expect(page.locator("#live")).to_have_text("round 2 of 3")
        file.write(lines[2][20:])
        file.flush()
        expect(page.locator("#live")).to_have_text("round 3 of 3")
        (going / "summary.json").write_text(summary)
        expect(page.get_by_role("link", name="Watch it adapt")).to_be_visible()
        expect(page.locator("#live")).to_have_count(0)


@pytest.mark.parametrize(
    "path", ["/", "/run/digits", "/adapt/digits", "/own/table", "/compare?run=digits&run=table"]
)
def test_narrow_screens_do_not_scroll_sideways(browser: Browser, address: str, path: str) -> None:
    with visiting(browser, address, **PHONE) as page:
        page.goto(path)
        page.wait_for_load_state("networkidle")
        assert page.evaluate("document.documentElement.scrollWidth") <= 360


@pytest.mark.parametrize("path", ["/", "/run/digits", "/adapt/digits", "/own/digits"])
def test_everything_that_can_be_operated_has_a_name(page: Page, path: str) -> None:
    page.goto(path)
    nameless = page.evaluate(
        """() => [...document.querySelectorAll("input, select, button, canvas, svg[role=img]")]
        .filter((e) => !(e.labels?.length || e.getAttribute("aria-label") || e.innerText
          || e.getAttribute("aria-labelledby")))
        .map((e) => e.outerHTML)"""
    )
    assert nameless == []


def test_a_damaged_run_is_shown_as_such(page: Page) -> None:
    page.goto("/")
    row = page.locator("tr", has_text="broken")
    expect(row.locator(".badge")).to_have_text("damaged")
    expect(row.get_by_role("link")).to_have_count(0)
    assert json.dumps(row.inner_text()).count("settings.json") == 1

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
from ui.conftest import make_run

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
        reached.append(page.evaluate("document.activeElement.innerText || ''"))
    assert "Watch it adapt" in reached


@pytest.mark.parametrize("width", [1400, 390])
def test_keyboard_alone_from_the_list_to_a_comparison(
    browser: Browser, address: str, width: int
) -> None:
    """List, run, adapt, compare: nothing scrolls sideways, nothing is cut, focus stays."""
    screen: dict[str, Any] = {"viewport": {"width": width, "height": 900}}
    with visiting(browser, address, reduced_motion="reduce", **screen) as page:
        page.goto("/")
        whole(page, width)
        press_to(page, "digits")
        page.keyboard.press("Enter")
        expect(page.locator("#reached svg")).to_be_visible()
        whole(page, width)
        press_to(page, "Watch it adapt")
        page.keyboard.press("Enter")
        expect(page.locator("#support canvas").first).to_be_visible()
        press_to(page, "Adapt")
        page.keyboard.press("Enter")
        expect(page.locator("#position")).to_have_text("after step 5 of 5")
        expect(page.locator("#step")).to_be_focused()
        page.keyboard.press("ArrowLeft")
        expect(page.locator("#position")).to_have_text("after step 4 of 5")
        whole(page, width)
        page.goto("/")
        for name in ("digits", "group/other"):
            page.get_by_label(f"Compare {name}").focus()
            page.keyboard.press("Space")
        press_to(page, "Compare")
        page.keyboard.press("Enter")
        expect(page.locator("#reached polyline")).to_have_count(2)
        whole(page, width)


def press_to(page: Page, name: str) -> None:
    """Press Tab until something of that name has the focus."""
    named = "(e) => (e.getAttribute('aria-label') || e.innerText || '').trim()"
    for _ in range(90):
        page.keyboard.press("Tab")
        if page.evaluate(f"({named})(document.activeElement)") == name:
            return
    raise AssertionError(f"no way leads to {name}")


def whole(page: Page, width: int) -> None:
    """Nothing is wider than the screen, but for what scrolls in a box of its own."""
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert cut_texts(page) == []
    cut = page.evaluate(
        """(width) => [...document.querySelectorAll("table, figure, form, header")]
        .filter((e) => e.offsetParent && !e.closest(".scroll"))
        .filter((e) => e.getBoundingClientRect().right > width + 1).map((e) => e.outerHTML)""",
        width,
    )
    assert cut == []


def test_tables_are_sorted_and_curves_looked_at_closely(page: Page) -> None:
    page.goto("/run/digits")
    head = page.get_by_role("button", name="Device").first
    head.focus()
    names = page.locator(".nodes tbody").first.locator("th")
    page.keyboard.press("Enter")
    ascending = names.all_inner_texts()
    assert ascending == sorted(ascending)
    page.keyboard.press("Enter")
    assert names.all_inner_texts() == sorted(ascending, reverse=True)
    page.locator("#reached svg").focus()
    page.keyboard.press("End")
    expect(page.locator("#reached .tip")).to_contain_text(re.compile(r"3: .*1 step \d+\.\d\s%"))
    page.keyboard.press("+")
    expect(page.locator("#reached .tip")).to_contain_text("A closer look")
    page.keyboard.press("Escape")
    expect(page.locator("#reached .tip")).to_have_text("")
    page.locator("#loss svg").hover()
    expect(page.locator("#loss .tip")).to_contain_text("loss")


def test_a_run_is_named_and_deleted(browser: Browser, runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "digits", tmp_path / "runs/one")
    with serving(tmp_path / "runs") as address, visiting(browser, address) as page:
        page.goto("/run/one")
        page.get_by_text("Title, tags, delete").click()
        page.get_by_label("Title").fill("The good one")
        page.get_by_label("Tags").fill("paper, second")
        page.get_by_role("button", name="Keep").click()
        expect(page.locator("#kept")).to_have_text("kept")
        page.goto("/")
        page.get_by_label("Find a run").fill("paper")
        page.get_by_role("link", name="The good one").click()
        page.get_by_text("Title, tags, delete").click()
        page.get_by_role("button", name="Delete …").click()
        expect(page.get_by_role("button", name="Leave it")).to_be_focused()
        page.keyboard.press("Enter")
        assert (tmp_path / "runs/one/summary.json").exists()
        page.get_by_role("button", name="Delete …").click()
        page.get_by_role("button", name="Delete for good").click()
        expect(page.get_by_text("There are no runs here yet")).to_be_visible()
        assert not (tmp_path / "runs/one").exists()


def test_values_are_in_the_unit_of_their_label_and_no_text_is_cut(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [f"{i % 7},{['a', 'b'][i % 2]},p{i // 12},{1e6 * (i % 7 + i // 12)}" for i in range(96)]
    Path("pumps.csv").write_text("\n".join(["load,mode,pump,litres", *rows]) + "\n")
    table = {"name": "pumps.csv", "label": "litres", "node": "pump", "task": "regression"}
    make_run("runs/pumps", table)
    with serving(tmp_path / "runs") as address, visiting(browser, address) as page:
        page.goto("/run/pumps")
        expect(page.locator("#reached svg text").first).to_be_visible()
        assert cut_texts(page) == []
        page.goto("/adapt/pumps")
        page.get_by_role("button", name="Adapt").click()
        expect(page.locator("#position")).to_have_text("after step 5 of 5")
        expect(page.locator("#before")).to_contain_text("litres²")
        expect(page.locator("#function svg text").last).to_be_visible()
        assert cut_texts(page) == []
        page.goto("/own/pumps")
        expect(page.locator(".lede")).to_contain_text("columns load, mode, and litres if")


def cut_texts(page: Page) -> list[str]:
    """Texts of pictures that reach beyond them."""
    found: list[str] = page.evaluate(
        """() => [...document.querySelectorAll("svg text")].filter((text) => {
          const [a, b] = [text, text.ownerSVGElement].map((e) => e.getBoundingClientRect());
          return a.left < b.left - 1 || a.right > b.right + 1 || a.top < b.top - 1
            || a.bottom > b.bottom + 1;
        }).map((text) => text.textContent)"""
    )
    return found


def test_methods_of_a_comparison_have_curves(page: Page) -> None:
    page.goto("/comparison/both")
    expect(page.locator("#reached polyline")).to_have_count(2)


def test_names_of_curves_that_end_low_keep_off_the_axis(page: Page) -> None:
    page.goto("/comparison/both")
    lowest: dict[str, float] = page.evaluate(
        """async () => {
          const { chart } = await import("/static/chart.js");
          const place = document.createElement("div");
          document.body.append(place);
          const low = [[0, 4], [100, 1]];
          const lines = ["one", "two"].map((name) => ({ name, colour: "red", points: low }));
          chart(place, lines, { label: "" });
          const texts = [...place.querySelectorAll("text")];
          const below = (of) => Math.max(...of.map((each) => each.y.baseVal[0].value));
          const named = (each) => ["one", "two"].includes(each.textContent);
          const rest = texts.filter((each) => !named(each));
          return { names: below(texts.filter(named)), axis: below(rest) };
        }"""
    )
    assert lowest["axis"] - lowest["names"] >= 13  # units of the drawing; letters are 12 high


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
    (going / "manifest.json").unlink()  # which is there only once a run has ended
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
        .filter((e) => !(e.labels?.length || e.getAttribute("aria-label") || e.textContent
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

"""What the documentation shows is what happens."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs.pages import PAGES, ROOT, blocks, commands, missing, run_page


def _parameter(page: Path) -> object:
    """Pages that start programs are slow."""
    starts_programs = any(block.kind == "console" for block in blocks(page.read_text("utf-8")))
    marks = [pytest.mark.slow] if starts_programs else []
    return pytest.param(page, marks=marks, id=str(page.relative_to(ROOT)))


WITH_CODE = [page for page in PAGES if any(blocks(page.read_text("utf-8")))]


@pytest.mark.filterwarnings("default")  # libraries may warn a reader too
@pytest.mark.parametrize("page", [_parameter(page) for page in WITH_CODE])
def test_page(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_page(page.read_text("utf-8"), tmp_path)


def test_what_is_run_of_a_page() -> None:
    page = """
```python
x = 1
```
<!-- not run: needs the network -->
```console
$ pip install fedmeta
```
```toml title="a.toml"
x = 1
```
```text
$ nothing
```
- in a list

    ```console
    $ one \\
      --two
    printed
    $ three
    ```
"""
    found = list(blocks(page))
    assert [(each.kind, each.file) for each in found] == [
        ("python", None),
        ("toml", "a.toml"),
        ("console", None),
    ]
    assert list(commands(found[2].text)) == [
        ("one \\\n  --two\n", ["printed"]),
        ("three\n", []),
    ]


def test_a_page_that_does_not_do_what_it_says(tmp_path: Path) -> None:
    for page in (
        "```python\nassert 1 + 1 == 3\n```",
        "```console\n$ false\n```",
        "```console\n$ echo yes\nno\n```",
        '```toml title="a.toml"\nx\n```\n```console\n$ test ! -e a.toml\n```',
    ):
        with pytest.raises(AssertionError):
            run_page(page, tmp_path)
    run_page("```console\n$ echo finished after 31.5 s\nfinished after 2 s\n…\n```", tmp_path)


def test_numbers_may_differ_but_not_words() -> None:
    assert missing(["┃ a ┃ 95.0 % ┃", "┏━━┓"], "┃ a   ┃ 100.0 % ┃\n┏━━━━━┓") == []
    assert missing(["accuracy 3 %"], "loss 3 %") == ["accuracy 3 %"]

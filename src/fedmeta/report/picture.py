"""Figures as inline SVG that takes its colours and its font from the page.

One picture serves light, dark and print. One unit of a figure is one CSS pixel at its natural
width.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from fedmeta.report.style import PAGE, SMALL, STAND_INS, svg

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Picture:
    """A figure for the page.

    Args:
        name: unique on the page.
        svg: its markup, safe to include.
        caption: one line below it.
        width: natural width in CSS pixels.
    """

    name: str
    svg: str
    caption: str
    width: int


def draw(
    paint: Callable[[Figure], None],
    *,
    name: str,
    label: str,
    caption: str,
    size: tuple[int, int] = SMALL,
) -> Picture:
    """Paint a figure and make it part of a page.

    Args:
        paint: draws on the empty figure it is given.
        name: unique on the page.
        label: what the picture shows, for those who cannot see it.
        caption: one line below it.
        size: width and height in CSS pixels.
    """
    width, height = size
    document = svg(paint, PAGE, (width / 72, height / 72)).decode()
    return Picture(name, _inline(document, name, label, width, height), caption, width)


def present(*pictures: Picture | None) -> list[Picture]:
    """Those that there is something to show in."""
    return [picture for picture in pictures if picture is not None]


def _inline(document: str, name: str, label: str, width: int, height: int) -> str:
    """An SVG document as an element of a page: no header, no global style, no clashing ids."""
    body = document[document.index("<svg") :]
    body = re.sub(r"<svg[^>]*>", "", body, count=1)
    for junk in (
        r"<!--.*?-->",
        r"<metadata>.*?</metadata>",
        r"<defs>\s*<style.*?</style>\s*</defs>",
    ):
        body = re.sub(junk, "", body, flags=re.DOTALL)
    used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', body))
    # Tags alone: what stands between them are names and numbers that must stay as they are.
    body = re.sub(r"<[^>]+>", lambda tag: _restyled(tag[0], name, used), body)
    body = re.sub(r">\s+<", "><", body).strip()
    return (
        f'<svg role="img" aria-label="{escape(label)}" viewBox="0 0 {width} {height}" '
        f'style="max-width: {1.25 * width:.0f}px">{body}'
    )


def _restyled(tag: str, name: str, used: Collection[str]) -> str:
    """A tag with the page's colours and font, fewer decimals, and an id only where it is used."""
    tag = tag.replace("xlink:href", "href")
    tag = re.sub(r' id="([^"]*)"', lambda m: f' id="{name}-{m[1]}"' if m[1] in used else "", tag)
    tag = re.sub(r'(href="#|url\(#)', rf"\g<1>{name}-", tag)
    for role, stand_in in STAND_INS.items():
        tag = tag.replace(stand_in, f"var(--{role})")
    tag = re.sub(r"font: ([\d.]+px)[^;\"]*", r"font-size: \1", tag)
    return re.sub(r"(\d+\.\d{2})\d+", r"\1", " ".join(tag.split()))

r"""Formulas become MathML when the site is built: \(…\) and $$…$$ need no script in the browser."""

from __future__ import annotations

import html
import re
from typing import Any

from latex2mathml.converter import convert

_FORMULA = re.compile(r'<(span|div) class="arithmatex">(.*?)</\1>', re.DOTALL)


def on_page_content(text: str, **_: Any) -> str:
    """Turn what arithmatex has marked into MathML."""
    return _FORMULA.sub(_mathml, text)


def _mathml(found: re.Match[str]) -> str:
    latex = html.unescape(found[2]).strip()
    block = found[1] == "div"
    formula = convert(latex[2:-2].strip(), display="block" if block else "inline")
    return f'<div class="formula">{formula}</div>' if block else formula

"""The page of a diagnosis: a run held against the theory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from fedmeta.core.storage import write_bytes
from fedmeta.report import diagnosis_figures as figures
from fedmeta.report import format as fmt
from fedmeta.report.pages import render, require_extras
from fedmeta.report.picture import present

SYMBOLS = {
    "smoothness": "μ",
    "gradient": "β",
    "hessian": "ζ",
    "nu_derived": "ν as derived",
    "nu_printed": "ν as printed",
    "gradient_deviation": "σᵍ",
    "hessian_deviation": "σʰ",
    "gradient_gap": "ψᵍ",
    "hessian_gap": "ψʰ",
    "penalty": "ρ",
    "least_derived": "smallest ρ as derived",
    "least_printed": "smallest ρ as printed",
}


def write_diagnosis(path: Path, found: Mapping[str, Any], title: str) -> None:
    """Write the page.

    Args:
        path: of the HTML file.
        found: `Findings.plain()`, or what diagnosis.json holds.
        title: of the run.
    """
    require_extras()
    content = {
        "title": title,
        "headline": headline(found),
        "remarks": [f"{note[:1].upper()}{note[1:]}." for note in found["notes"]],
        "charts": present(
            figures.values(found),
            figures.norms(found),
            figures.rate(found),
            figures.penalties(found),
            figures.bounds(found),
        ),
        "constants": constant_rows(found),
        "against": against(found),
        "found": found,
    }
    write_bytes(path, render("diagnosis.html", content).encode())


def headline(found: Mapping[str, Any]) -> str:
    """The whole diagnosis in a sentence.

    Example:
        >>> headline({"inside_the_theorem": True, "closed_form": False, "verdicts": []})
        'Nothing that was seen contradicts the theorem'
    """
    if found["inside_the_theorem"]:
        if found["closed_form"]:
            return "The run lies inside the theorem"
        return "Nothing that was seen contradicts the theorem"
    wrong = [v for v in found["verdicts"] if v["status"] == "violated" and not v["printed"]]
    small = [v["name"] for v in wrong if "ρ" in v["name"] or "a_p" in v["name"]]
    if small:
        return f"Outside the theorem: ρ is too small ({fmt.listed(small)})"
    return "Outside the theorem"


def against(found: Mapping[str, Any]) -> list[str]:
    """What stands between the run and the theorem besides ρ, a line each."""
    difference = found["difference"]
    lines = []
    if difference["summable"] is not True:
        known = "is not summable" if difference["summable"] is False else "may not be summable"
        lines.append(f"δ {known}: {difference['reason']}")
    for layer in found["layers"]:
        lines.append(f"layer {layer['name']!r} ({layer['kind']}) breaks the {layer['breaks']}")
    return [*lines, *found["departures"]]


def constant_rows(found: Mapping[str, Any]) -> list[list[str]]:
    """Symbol, median and largest over the sources, whose that is, and the target's."""
    rows = []
    for key, symbol in SYMBOLS.items():
        values = {n["name"]: n[key] for n in found["nodes"] if n[key] is not None}
        unbounded = len(values) < len(found["nodes"])
        own = (found["target"] or {}).get(key)
        where = max(values, key=lambda name: values[name]) if values and not unbounded else ""
        rows.append(
            [
                symbol,
                fmt.number(median(values.values())) if values else fmt.NO_VALUE,
                "∞" if unbounded else fmt.number(max(values.values())),
                where,
                fmt.NO_VALUE if own is None or key.endswith("gap") else fmt.number(own),
            ]
        )
    return rows

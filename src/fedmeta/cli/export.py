"""`fedmeta export`: a model for devices without PyTorch, which may adapt there."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedmeta.cli import setting_options as options
from fedmeta.cli.command import Command, Parameter, Values
from fedmeta.cli.console import say
from fedmeta.core.errors import SettingError, require, require_choice
from fedmeta.core.storage import writing
from fedmeta.data.loading import read_own
from fedmeta.fleet.reopen import open_model

PARAMETERS = (
    Parameter("run", "Run folder or model.safetensors.", argument=True),
    Parameter("out", "The file to write.", short="o", metavar="FILE.onnx"),
    Parameter("format", "What to write.", default="onnx"),
    Parameter("adaptable", "Write the adaptation into the file: devices adapt with it.", bool),
    Parameter("adapted", "Adapt to these samples first: .csv, .parquet or .npz.", metavar="DATA"),
    Parameter("label", "Label column of those samples.", default="label, or y in .npz files"),
    Parameter("steps", "Gradient steps on those samples.", int, default="as trained"),
    *options.OWN_CODE,
)


def run(values: Values) -> None:
    """Write a model as an ONNX file, for devices without PyTorch."""
    from fedmeta.export import export_onnx  # brings torch's tracer, which other commands do without

    require_choice("format", values["format"] or "onnx", ("onnx",))
    if values["out"] is None:
        raise SettingError("there is no file to write", "name it: --out FILE.onnx")
    if values["adapted"] is None and (values["label"] is not None or values["steps"] is not None):
        raise SettingError("--label and --steps go with --adapted", "give --adapted DATA as well")
    model = open_model(Path(values["run"]), values["model"], values["loss"])
    if values["adapted"] is not None:
        steps, features = values["steps"], model.about.get("features") or None
        require(steps is None or steps >= 0, "steps", steps, "a whole number of at least 0")
        pool = read_own(values["adapted"], model.task.kind, values["label"], features=features)
        named = np.array(pool.class_names)[pool.labels] if pool.class_names else pool.labels
        model = model.adapt(pool.inputs, named, steps=steps)
    file = Path(values["out"])
    with writing(file):
        file.parent.mkdir(parents=True, exist_ok=True)
    export_onnx(model, file, adaptable=values["adaptable"])
    what = "the meta-model" if values["adapted"] is None else "the adapted model"
    how = "adapts and predicts" if values["adaptable"] else "predicts"
    say(f"{what} written to {file} ({file.stat().st_size / 1e6:.2g} MB), a graph that {how}")


COMMAND = Command("export", PARAMETERS, run, "runs/mine --adaptable --out model.onnx")

if __name__ == "__main__":
    COMMAND.main()

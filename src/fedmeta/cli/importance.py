"""`fedmeta importance`: how much each parameter of a run matters, stored for later tasks."""

from __future__ import annotations

from pathlib import Path

from fedmeta.cli import setting_options as options
from fedmeta.cli.command import Command, Parameter, Values
from fedmeta.cli.console import say, table
from fedmeta.core.run_folder import RunFolder
from fedmeta.core.storage import read_tensors
from fedmeta.fleet.reopen import open_model, own_federation
from fedmeta.models.meta_model import MetaModel
from fedmeta.training.run_importance import store_importance

PARAMETERS = (
    Parameter("run", "Run folder.", argument=True),
    Parameter(
        "kind", "fisher (asks the sources) or path (of train --importance path).", default="fisher"
    ),
    Parameter("add", "Run whose importance counts too (repeatable).", many=True, metavar="RUN"),
    Parameter("device", "cpu or cuda.", default="cpu"),
    *options.OWN_CODE,
)


def run(values: Values) -> None:
    """Estimate how much each parameter of a run matters, and store it with the run."""
    folder = RunFolder.open(Path(values["run"]))
    model = open_model(folder.path, values)
    kind, earlier = values["kind"] or "fisher", [Path(each) for each in values["add"] or ()]
    nodes = own_federation(folder, sources=True)
    file = store_importance(folder.path, kind, model, nodes, values["device"] or "cpu", earlier)
    print_importance(file, kind, model)


def print_importance(file: Path, kind: str, model: MetaModel) -> None:
    """What the stored importance of a run says of its model."""
    stored, _ = read_tensors(file, "importance")
    leaves = {name: stored[name] for name in model.theta}
    rows = [[name, f"{leaf.mean():.3g}", f"{leaf.max():.3g}"] for name, leaf in leaves.items()]
    table(f"importance ({kind}) of the parameters, by tensor", ["tensor", "mean", "largest"], rows)
    say(f"written to {file}")


COMMAND = Command("importance", PARAMETERS, run, "runs/mine")

if __name__ == "__main__":
    COMMAND.main()

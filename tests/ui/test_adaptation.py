from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fedmeta.core.errors import SettingError
from fedmeta.core.run_folder import RunFolder
from fedmeta.evaluation.evaluate import score
from fedmeta.fleet.message import model_bytes
from fedmeta.fleet.reopen import open_model, own_federation
from fedmeta.models.meta_model import MetaModel
from fedmeta.ui.adaptation import Labelled, adapt_stepwise, curve_inputs


def opened(folder: Path) -> tuple[MetaModel, Labelled, Labelled]:
    model, federation = open_model(folder), own_federation(RunFolder.open(folder))
    node = federation.targets[0]
    support, query = (
        Labelled(federation.inputs[part], federation.labels[part])
        for part in (node.support, node.query)
    )
    return model, support, query


@pytest.mark.parametrize(("means", "batch_size"), [(True, None), (False, None), (False, 3)])
def test_every_step_is_that_of_the_command_line(
    runs: Path, means: bool, batch_size: int | None
) -> None:
    model, support, query = opened(runs / "digits")
    rule = replace(model.adaptation, method="gradient", step_size=0.3, batch_size=batch_size)
    model = model if means else replace(model, adaptation=rule)
    steps, last = adapt_stepwise(model, support, query, query.inputs, 4)
    names = np.array(model.task.class_names)[support.labels]
    for step in steps:
        alone = model.adapt(support.inputs, names, steps=step.number)
        assert step.metric == score(alone, *query)
        assert step.predicted == alone.predict(query.inputs).argmax(dim=1).tolist()
    assert all((last.theta[n] == leaf).all() for n, leaf in alone.theta.items())
    assert steps[0].confidence != steps[-1].confidence


def test_what_the_file_holds_is_the_adapted_model(runs: Path, tmp_path: Path) -> None:
    model, support, query = opened(runs / "digits")
    _, last = adapt_stepwise(model, support, query, query.inputs, 2)
    (tmp_path / "mine.safetensors").write_bytes(model_bytes(last))
    loaded = MetaModel.load(tmp_path / "mine.safetensors")
    assert (loaded.predict(query.inputs) == last.predict(query.inputs)).all()


def test_a_function_of_one_number_is_drawn(runs: Path) -> None:
    model, support, query = opened(runs / "waves")
    steps, last = adapt_stepwise(model, support, query, query.inputs, 1)
    along = curve_inputs(model, np.concatenate([support.inputs, query.inputs]))
    assert steps[1].curve == last.predict(along)[:, 0].tolist()
    assert len(steps[1].curve) == 101


def test_a_model_that_blew_up_has_no_metric(runs: Path) -> None:
    model, support, query = opened(runs / "digits")
    wild = replace(model, theta={name: leaf * torch.inf for name, leaf in model.theta.items()})
    steps, _ = adapt_stepwise(wild, support, query, query.inputs, 1)
    assert [step.metric for step in steps] == [None, None]
    assert set(steps[-1].predicted) == {None}


@pytest.mark.parametrize("steps", [-1, 21, True, 1.0])
def test_steps_have_a_limit(runs: Path, steps: int) -> None:
    model, support, query = opened(runs / "digits")
    with pytest.raises(SettingError, match="steps is"):
        adapt_stepwise(model, support, query, query.inputs, steps)

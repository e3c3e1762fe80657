"""What nobody has tuned works."""

from __future__ import annotations

import pytest

from fedmeta import DataSettings, ModelSettings, TrainingSettings, load, train
from fedmeta.algorithms import ALGORITHMS
from fedmeta.config.training import loss_of
from fedmeta.core.errors import SettingError


@pytest.mark.parametrize("data", ["sinusoid", "digits"])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_survives_its_defaults(name: str, data: str) -> None:
    federation = load(DataSettings(data), seed=0)
    training = TrainingSettings(rounds=40, evaluate_every=0)
    if (name, data) == ("prototypes", "sinusoid"):
        with pytest.raises(SettingError, match="means of classes"):
            train(federation, ModelSettings("mlp"), ALGORITHMS[name](), training)
        return
    run = train(federation, ModelSettings("mlp"), ALGORITHMS[name](), training)
    assert run.summary["status"] == "finished"
    before, after = (loss_of(run.history[place]) for place in (0, -1))
    assert before is not None
    assert after is not None
    assert after < before or name == "local-only"

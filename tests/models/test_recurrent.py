"""Gated recurrent units written out: torch's own numbers, padding ignored, nodes side by side."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fedmeta import Execution, ModelSettings, federate, train
from fedmeta.core.errors import FedmetaError
from fedmeta.core.user_code import load_object
from fedmeta.models.recurrent import RecurrentLayer, RecurrentNetwork

EXAMPLE = Path(__file__).parents[2] / "examples/motion/recurrent.py"
DATA = Path(__file__).parents[3] / "shared/data/hapt_windows.npz"


def test_a_layer_is_the_gru_of_torch() -> None:
    torch.manual_seed(0)
    own, known = RecurrentLayer(3, 4).double(), nn.GRU(3, 4, batch_first=True).double()
    with torch.no_grad():
        own.inputs.weight.copy_(known.weight_ih_l0)
        own.inputs.bias.copy_(known.bias_ih_l0)
        own.state.weight.copy_(known.weight_hh_l0)
        own.state.bias.copy_(known.bias_hh_l0)
    steps = torch.randn(5, 7, 3).double()
    assert torch.allclose(own(steps, torch.ones(5, 7)), known(steps)[0], atol=1e-12)


def test_padding_changes_nothing() -> None:
    torch.manual_seed(0)
    network = RecurrentNetwork((6,), 2, (5, 4), vocabulary=9)
    short, long = torch.tensor([[3, 8, 1]]), torch.tensor([[3, 8, 1, 0, 0, 0]])
    assert torch.allclose(network(short), network(long), atol=1e-7)
    assert bool(network(torch.zeros(1, 6, dtype=torch.int64)).isfinite().all())


@pytest.mark.parametrize("series", [True, False])
def test_batched_as_one_by_one(series: bool) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(64, 5, 2)) if series else rng.integers(1, 9, size=(64, 5))
    federation = federate(x, np.arange(64) % 2, np.arange(64) // 8)
    settings = ModelSettings("gru", hidden=(6,), vocabulary=0 if series else 9)
    one, other = (
        train(
            federation,
            settings,
            rounds=3,
            execution=Execution(path=path, dtype="float64"),  # type: ignore[arg-type]
        ).meta_model
        for path in ("batched", "loop")
    )
    assert one.scaling.tokens is not series
    for name, leaf in one.theta.items():
        assert torch.allclose(leaf, other.theta[name], rtol=1e-9, atol=1e-12)


def test_one_clear_line() -> None:
    labels, node = np.arange(64) % 2, np.arange(64) // 8
    words = np.arange(320).reshape(64, 5) % 9
    with pytest.raises(FedmetaError, match=r"how many there are.*model\.vocabulary"):
        train(federate(words, labels, node), ModelSettings("gru"), rounds=1)
    with pytest.raises(FedmetaError, match="token 8, but the model knows 8"):
        train(federate(words, labels, node), ModelSettings("gru", vocabulary=8), rounds=1)
    with pytest.raises(FedmetaError, match="cut windows, each with the token that follows"):
        federate(words, words, node)


@pytest.mark.skipif(not DATA.is_file(), reason="hapt_windows.npz is not there")
def test_the_example_on_motion_data(capsys: pytest.CaptureFixture[str]) -> None:
    main = load_object(f"{EXAMPLE}:main", "example")
    main(["--data", str(DATA), "--rounds", "2"])
    assert capsys.readouterr().out.count("accuracy of five new people") == 2

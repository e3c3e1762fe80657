"""What a single process can show of ranks; tests/integration/test_ranks.py starts several."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from typing import Any, NoReturn
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from engines.runs import CHUNKED, VALUES, seeded
from fedmeta.algorithms import ADMMFedMeta
from fedmeta.cli.train import COMMAND
from fedmeta.core.errors import SettingError
from fedmeta.core.objective import Adaptation, Objective
from fedmeta.engine.cohort import Cohort
from fedmeta.engine.layout import Layout, predictor
from fedmeta.engine.local import LocalEngine
from fedmeta.engine.ranks import Ranks, current, started
from fedmeta.models.losses import cross_entropy
from fedmeta.uplink.participation import Participation
from problems import PLAIN, double, flat, mlp


@given(size=st.integers(1, 40), extra=st.integers(0, 200))
def test_shares_are_even_blocks_in_order(size: int, extra: int) -> None:
    nodes = size + extra
    shares = [Ranks(rank, size).share(nodes) for rank in range(size)]
    assert [node for share in shares for node in share] == list(range(nodes))
    lengths = [len(share) for share in shares]
    assert max(lengths) - min(lengths) <= 1
    assert min(lengths) >= 1
    assert lengths == sorted(lengths, reverse=True)


@given(size=st.integers(2, 40), nodes=st.integers(0, 39))
def test_more_ranks_than_nodes(size: int, nodes: int) -> None:
    if nodes >= size:
        return
    with pytest.raises(SettingError, match=f"there are {size} ranks but only {nodes} source nodes"):
        Ranks(0, size).share(nodes)


def test_alone() -> None:
    ranks = current()
    assert ranks == Ranks() == Ranks(0, 1)
    assert ranks.leads
    assert not Ranks(1, 2).leads
    total = {"a": torch.ones(2)}
    assert ranks.sum(total) is total
    assert ranks.gathered({"dual": total}, 3) == {"dual": total}
    assert ranks.agree(total) is total
    places = {"dual": {"a": torch.zeros(2)}}
    ranks.scatter({"dual": total}, places, 3)
    assert torch.equal(places["dual"]["a"], torch.ones(2))


def test_nobody_started_us(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with started("cpu") as ranks:
        assert ranks == Ranks()
        assert not dist.is_initialized()


def fails(device: str) -> None:
    with started(device) as ranks:
        assert ranks == Ranks(3, 4)
        raise KeyError


@pytest.mark.parametrize(("device", "backend"), [("cpu", "gloo"), ("cuda", "cpu:gloo,cuda:nccl")])
def test_started_by_torchrun(device: str, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_RANK", "3")
    with (
        mock.patch.object(dist, "init_process_group") as begun,
        mock.patch.object(dist, "destroy_process_group") as ended,
        mock.patch("torch.cuda.set_device") as chosen,
        mock.patch.object(dist, "is_initialized", side_effect=[False, True]),
        mock.patch.object(dist, "get_rank", return_value=3),
        mock.patch.object(dist, "get_world_size", return_value=4),
    ):
        with pytest.raises(KeyError):
            fails(device)
        begun.assert_called_once_with(backend)
        ended.assert_called_once_with()
        assert [call.args for call in chosen.call_args_list] == ([(3,)] if device == "cuda" else [])


class Quiet(Ranks):
    """One of two ranks that hears nothing from the other."""

    def sum(self, total: Any) -> Any:
        return total


class Recurrent(nn.Module):
    """Reads the features of a sample one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.GRU(1, 2, batch_first=True), nn.Linear(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x.unsqueeze(-1))[0][:, -1])


@pytest.mark.parametrize(
    ("make", "path"),
    [
        (mlp, "batched"),
        (mlp, "loop"),
        (lambda: seeded(Recurrent), "loop"),
    ],
    ids=["batched", "loop", "recurrent"],
)
def test_a_rank_without_a_counted_node_adds_nothing(make: Any, path: str) -> None:
    model, some = double(make()), Participation(0.2)
    execution = replace(CHUNKED, path=path, chunk=2 if path == "batched" else 1)
    layout = Layout(execution, Objective(predictor(model, execution), cross_entropy))
    algorithm = ADMMFedMeta(Adaptation(0.1), 0.5)
    for rank, share in ((0, {0, 1, 2}), (1, {3, 4})):
        cohort = Cohort(VALUES, PLAIN, 0)
        engine = LocalEngine(algorithm, cohort, layout, some, Quiet(rank, 2))
        counted = [set(some.counted(5, t, engine._draws).tolist()) for t in range(1, 30)]
        number = next(t for t, who in enumerate(counted, 1) if not who & share)
        state, nodes = engine.start(model.theta)
        assert len(nodes["dual"][next(iter(model.theta))]) == len(share)
        result = engine.round(state, nodes, number)
        assert torch.equal(flat(result.state.theta), flat(model.theta))
        assert not flat(result.nodes["dual"]).any()
        assert result.metrics["meta_loss"] == 0
        assert result.metrics["counted"] == 1


def test_a_rank_leaves_without_the_end_of_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread of gloo can abort a process that ends while the thread lets go of a tensor."""
    monkeypatch.setattr(os, "_exit", _left)
    monkeypatch.setattr(sys, "argv", ["train", "--rounds", "none"])
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "of a test")
    with pytest.raises(_LeftError, match="2"):
        COMMAND.main()
    monkeypatch.delenv("TORCHELASTIC_RUN_ID")
    with pytest.raises(SystemExit, match="2"):
        COMMAND.main()


class _LeftError(Exception):
    pass


def _left(code: int) -> NoReturn:
    raise _LeftError(code)

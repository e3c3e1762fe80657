"""Further networks: we and the plain loop train them alike."""

from __future__ import annotations

import pytest

from benchmarks import ours, zoo
from benchmarks.bench import Bench, check_agreement


@pytest.mark.parametrize("name", zoo.NETWORKS)
def test_both_reach_the_same(name: str) -> None:
    task = zoo.problem(name, 2)
    check_agreement(
        task, {"fedmeta": ours.admm_fedmeta(task, "cpu"), "loop": zoo.plainly(task)}, "cpu"
    )


def test_a_line_for_every_row(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zoo, "WARM", 1)
    monkeypatch.setattr(zoo, "Bench", lambda: Bench(quick=True))
    zoo.main(["--nodes", "2", "--only", "embedding"])
    assert capsys.readouterr().out.startswith("embedding       2 nodes:")

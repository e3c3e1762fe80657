"""Comparisons: the same footing for all, equal work, paired differences."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedmeta.algorithms import ADMMFedMeta, FedAvg, Reptile
from fedmeta.config.spec import RunSpec
from fedmeta.core.errors import RunFolderError, SettingError
from fedmeta.core.run_folder import RunFolder
from fedmeta.data.augmentation import Augmentation
from fedmeta.evaluation.intervals import student_quantile
from fedmeta.studies.compare import Contestant, compare
from fedmeta.training.callbacks import Callback

FIRST, SECOND = Contestant("avg", FedAvg(step_size=0.05)), Contestant("admm", ADMMFedMeta())


def settings(**data: Any) -> RunSpec:
    return RunSpec.from_dict(
        {
            "data": {"name": "sinusoid", "nodes": 6, "samples": [8, 12], **data},
            "model": {"name": "linear"},
            "training": {"rounds": 4, "evaluate_every": 0},
        }
    )


def quiet(_: str) -> Sequence[Callback]:
    return ()


def test_rows_and_paired_differences(tmp_path: Path) -> None:
    found = compare(settings(), [FIRST, SECOND], [3, 5, 8], "rounds", tmp_path, quiet)
    assert json.loads((tmp_path / "comparison.json").read_text()) == found
    first, second = found["rows"]
    assert (found["metric"], found["seeds"]) == ("mse", [3, 5, 8])
    assert first["runs"] == [f"runs/avg-seed{seed}" for seed in (3, 5, 8)]
    for row in (first, second):
        assert row["mean"] == pytest.approx(sum(row["values"]) / 3)
        deviation = np.std(row["values"], ddof=1)
        assert row["ci95"] == pytest.approx(student_quantile(2) * deviation / 3**0.5)
        assert row["before_mean"] == pytest.approx(np.mean(row["before"]))
    differences = [a - b for a, b in zip(first["values"], second["values"], strict=True)]
    (paired,) = found["paired"]
    assert paired["against"] == "admm"
    assert paired["mean"] == pytest.approx(np.mean(differences))
    assert paired["ci95"] == pytest.approx(
        student_quantile(2) * np.std(differences, ddof=1) / 3**0.5
    )


def test_same_seed_same_federation_and_weights(tmp_path: Path) -> None:
    """Two contestants that do nothing differ in nothing."""
    idle = [Contestant(name, FedAvg(step_size=1e-30)) for name in "ab"]
    found = compare(settings(), idle, [0, 1], "rounds", tmp_path, quiet)
    assert found["rows"][0]["values"] == found["rows"][1]["values"]
    assert found["paired"][0]["mean"] == 0
    assert found["rows"][0]["values"][0] != found["rows"][0]["values"][1]


@pytest.mark.parametrize(("steps", "rounds"), [(2, 2), (1, 4), (8, 1), (100, 1)])
def test_equal_gradients(steps: int, rounds: int, tmp_path: Path) -> None:
    """4 rounds of one pass are 2 rounds of two passes; nobody gets less than one round."""
    other = Contestant("other", FedAvg(local_steps=steps))
    found = compare(settings(), [FIRST, other], [0], "gradients", tmp_path, quiet)
    assert [row["rounds"] for row in found["rows"]] == [4, rounds]
    assert found["rows"][1]["gradient_evaluations"] == pytest.approx(steps * rounds)


def test_diverged_runs_count_as_the_initial_model(tmp_path: Path) -> None:
    wild = Contestant("wild", Reptile(step_size=1e30))
    found = compare(settings(), [FIRST, wild], [0, 1], "rounds", tmp_path, quiet)
    row = found["rows"][1]
    assert row["diverged"] == 2
    assert row["values"] == row["before"] == found["rows"][1]["before"]
    assert found["rows"][0]["diverged"] == 0


def test_precise_sets_have_rows_and_differences_too(tmp_path: Path) -> None:
    data = {"name": "digits", "nodes": 6, "samples": [6, 8], "precise": 40}
    drawn = settings(**data)
    wild = Contestant("wild", Reptile(step_size=1e30))
    contestants = [FIRST, SECOND, wild]
    found = compare(drawn, contestants, [3, 5, 8], "rounds", tmp_path / "precise", quiet)
    plain = compare(
        settings(**data | {"precise": 0}),
        contestants,
        [3, 5, 8],
        "rounds",
        tmp_path / "plain",
        quiet,
    )
    assert not any("precise" in row for row in [*plain["rows"], *plain["paired"]])
    for row, other in zip(found["rows"], plain["rows"], strict=True):
        assert row["values"] == other["values"]
        precise = row["precise"]
        summaries = [RunFolder.open(tmp_path / "precise" / run).summary() for run in row["runs"]]
        if row["label"] == "wild":
            assert row["diverged"] == 3
            assert precise["values"] == precise["before"]
        else:
            tables = [summary["precise_metric"] for summary in summaries]
            assert precise["values"] == [table["1"]["mean"] for table in tables]
            assert precise["before"] == [table["0"]["mean"] for table in tables]
        assert precise["values"] != row["values"]
        assert precise["mean"] == pytest.approx(np.mean(precise["values"]))
        assert precise["before_mean"] == pytest.approx(np.mean(precise["before"]))
        deviation = np.std(precise["values"], ddof=1)
        assert precise["ci95"] == pytest.approx(student_quantile(2) * deviation / 3**0.5)
    first, second, _ = (np.array(row["precise"]["values"]) for row in found["rows"])
    assert found["paired"][0]["precise"]["mean"] == pytest.approx((first - second).mean())
    assert found["paired"][0]["precise"]["mean"] != found["paired"][0]["mean"]


def test_it_says_how_steps_were_found_and_what_that_means(tmp_path: Path) -> None:
    untuned = Contestant("untuned", FedAvg())
    same = Contestant("same", FedAvg(server="auto"))
    found = compare(settings(), [SECOND, FIRST, untuned, same], [0], "rounds", tmp_path, quiet)
    assert [row["steps"] for row in found["rows"]] == ["automatic", "given", "default", "automatic"]
    assert json.loads((tmp_path / "comparison.json").read_text())["rows"][2]["steps"] == "default"
    unfair, few = found.notes
    assert unfair.startswith("untuned has a default step size that nobody tuned")
    assert "avg " not in unfair
    assert "no interval, and none is called the best" in few
    assert "±" not in repr(found)
    assert "note: untuned has" in repr(found)


def test_a_fair_comparison_of_enough_seeds_needs_no_note(tmp_path: Path) -> None:
    found = compare(settings(), [SECOND, FIRST], range(3), "rounds", tmp_path, quiet)
    assert found.notes == []
    assert repr(found).count("±") == 4  # one in the title, two means, one difference
    shown = found._repr_html_()
    assert shown.count("<tr>") == 3
    assert "<td>automatic</td>" in shown


def test_all_may_take_automatic_steps_in_python(tmp_path: Path) -> None:
    asked = [ADMMFedMeta(), FedAvg(), Reptile(step_size=0.2)]
    found = compare(settings(), asked, [0], folder=tmp_path, progress=False, steps="automatic")
    assert [row["steps"] for row in found["rows"]] == ["automatic", "automatic", "given"]
    kept = RunFolder(tmp_path / "runs/fedavg-seed0").settings()["settings"]["algorithm"]
    assert kept["inner"]["scope"] == "head"
    with pytest.raises(SettingError, match="automatic"):
        compare(settings(), asked, [0], folder=tmp_path / "b", steps="auto")  # type: ignore[arg-type]
    with pytest.raises(SettingError, match="inner is 'auto'"):
        FedAvg(inner="auto")  # type: ignore[arg-type]


def test_the_automatic_step_is_longer_where_values_are_predicted(tmp_path: Path) -> None:
    """As for the default: all that say "auto" take the same one."""
    both = [Contestant("admm", ADMMFedMeta()), Contestant("avg", FedAvg(server="auto"))]
    found = compare(settings(), both, [0], "rounds", tmp_path, quiet)
    stored = [
        RunFolder.open(tmp_path / row["runs"][0]).settings()["settings"]["algorithm"]["server"]
        for row in found["rows"]
    ]
    assert stored[0] == stored[1]
    assert stored[0]["longest_step"] == 0.05


def test_augmentation_is_that_of_the_settings(tmp_path: Path) -> None:
    drawn = settings(name="digits", nodes=6, samples=[6, 8])
    found = compare(
        replace(drawn, augmentation=Augmentation(shift=2)),
        [FIRST],
        [0],
        "rounds",
        tmp_path,
        quiet,
    )
    stored = RunFolder.open(tmp_path / found["rows"][0]["runs"][0]).settings()["settings"]
    assert stored["augmentation"] == {"flip": False, "shift": 2}


def test_what_is_refused(tmp_path: Path) -> None:
    for contestants in ([], [FIRST, FIRST]):
        with pytest.raises(SettingError, match="name each one once"):
            compare(settings(), contestants, [0], "rounds", tmp_path, quiet)
    with pytest.raises(SettingError, match="seeds is 0"):
        compare(settings(), [FIRST], [], "rounds", tmp_path, quiet)
    with pytest.raises(SettingError, match="no target nodes"):
        compare(settings(target_share=0), [FIRST], [0], "rounds", tmp_path, quiet)
    assert not list(tmp_path.iterdir())
    compare(settings(), [FIRST], [0], "rounds", tmp_path, quiet)
    with pytest.raises(RunFolderError, match="holds a comparison already"):
        compare(settings(), [FIRST], [0], "rounds", tmp_path, quiet)
    (tmp_path / "comparison.json").unlink()  # as if it had been interrupted
    with pytest.raises(RunFolderError, match="holds runs already"):
        compare(settings(), [FIRST], [0], "rounds", tmp_path, quiet)

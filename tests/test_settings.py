"""Settings tables: layers, checks, algorithms by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from fedmeta.algorithms import ALGORITHMS, ADMMFedMeta, FedAvg
from fedmeta.config.spec import RunSpec, build_algorithm, layered
from fedmeta.config.toml_files import merged, read_toml
from fedmeta.core.errors import SettingError
from fedmeta.core.meta_gradient import InverseSchedule
from fedmeta.data.augmentation import Augmentation


def test_nothing_given_is_the_default() -> None:
    settings = RunSpec.from_dict({})
    assert settings.algorithm == ADMMFedMeta()
    assert settings.data.precise == 0
    assert settings.augmentation == Augmentation()
    assert (settings.data.name, settings.training.rounds, settings.loss) == ("digits", 100, "auto")


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_every_algorithm_by_name(name: str) -> None:
    assert type(RunSpec.from_dict({"algorithm": name}).algorithm) is ALGORITHMS[name]


def test_inner_is_shared_and_may_be_overridden() -> None:
    table = {
        "inner": {"step_size": 0.5, "steps": 3},
        "algorithms": {"fedmeta": {"inner": {"steps": 7}}},
    }
    average: Any = build_algorithm(table, "fedavg")
    assert (average.inner.step_size, average.inner.steps) == (0.5, 3)
    meta: Any = build_algorithm(table, "fedmeta")
    assert (meta.inner.step_size, meta.inner.steps) == (0.5, 7)
    build_algorithm(table, "local-only")  # has no inner table, and does not mind


def test_tables_of_other_algorithms_are_kept_apart() -> None:
    table = {"algorithms": {"fedavg": {"local_steps": 5}, "admm-fedmeta": {"penalty": 2}}}
    assert build_algorithm(table, "fedavg") == FedAvg(local_steps=5)
    assert build_algorithm(table, "admm-fedmeta") == ADMMFedMeta(penalty=2.0)


def test_nested_tables() -> None:
    table = {"difference": {"growth": 0, "power": 2}, "penalty": {"a": 1, "b": 0.5}}
    admm: Any = build_algorithm({"algorithms": {"admm-fedmeta": table}}, "admm-fedmeta")
    assert admm.difference == InverseSchedule(growth=0.0, power=2.0)
    assert admm.penalty == {"a": 1.0, "b": 0.5}


def test_later_layers_win_key_by_key() -> None:
    first = {"data": {"name": "a", "nodes": 3}, "loss": "x"}
    assert merged([first, {"data": {"nodes": 4}}, {"loss": "y"}]) == {
        "data": {"name": "a", "nodes": 4},
        "loss": "y",
    }
    assert merged([{"data": 3}, {"data": {"nodes": 4}}]) == {"data": {"nodes": 4}}
    assert first == {"data": {"name": "a", "nodes": 3}, "loss": "x"}


def test_a_preset_lies_below_file_and_flags() -> None:
    table = layered(
        {"preset": "paper", "data": {"name": "fashion-mnist", "nodes": 7}},
        {"algorithms": {"admm-fedmeta": {"penalty": 9}}},
    )
    settings = RunSpec.from_dict(table)
    algorithm: Any = settings.algorithm
    assert (settings.data.nodes, algorithm.penalty) == (7, 9)
    assert algorithm.curvature == "finite-difference"
    assert layered({"preset": "paper"}, {"preset": "authors"})["preset"] == "authors"


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"training": 3}, r"training is 3: make it a table \[training\]"),
        ({"algorithms": 3}, r"make it a table \[algorithms\]"),
        ({"algorithms": {"admm-fedmeta": 3}}, r"make it a table \[algorithms.admm-fedmeta\]"),
        ({"algorithms": {"fedvag": {}}}, "did you mean 'fedavg'"),
        ({"algorithm": "fedvag"}, "did you mean 'fedavg'"),
        ({"training": {"ruonds": 1}}, "did you mean 'rounds'"),
        ({"training": {"rounds": "1"}}, "training.rounds is '1': give a whole number"),
        ({"training": {"rounds": True}}, "is True: give a whole number"),
        ({"training": {"seed": -1}}, "seed is -1"),
        ({"loss": 3}, "give its name"),
        ({"augmentation": {"shift": -1}}, "augmentation.shift is -1"),
        ({"augmentation": {"flip": 1}}, "augmentation.flip is 1: give true or false"),
        ({"augmentation": {"filp": True}}, "did you mean 'flip'"),
        ({"data": {"precise": 0.5}}, "data.precise is 0.5: give a whole number"),
        ({"init": 3}, "init is 3: give the path of a run or model file"),
        ({"init": ""}, "give the path"),
        ({"prior": {"strength": 1.0}}, "there is no prior model"),
        ({"prior": {"strength": -1.0}}, "at least 0"),
        ({"prior": {"model": "x"}, "algorithm": "fedavg"}, "fedavg takes no prior model"),
        ({"algorithm": "math:sqrt"}, "not an algorithm"),
        ({"algorithm": "fractions:Fraction"}, "not an algorithm"),
    ],
)
def test_what_makes_no_sense(table: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingError, match=words):
        RunSpec.from_dict(table)


def test_unknown_keys_and_presets() -> None:
    with pytest.raises(SettingError, match="did you mean 'training'"):
        layered({"traning": {}}, {})
    with pytest.raises(SettingError, match="did you mean 'paper'"):
        layered({}, {"preset": "papr"})
    with pytest.raises(SettingError, match="make it a table"):
        layered({"preset": "paper", "data": 3}, {})


def test_a_prior_is_loaded(tmp_path: Path) -> None:
    prior = {"weight": torch.arange(3.0)}
    safetensors.torch.save_file(prior, tmp_path / "prior.safetensors")
    table = {"prior": {"model": str(tmp_path / "prior.safetensors"), "strength": 0.5}}
    algorithm: Any = RunSpec.from_dict(table).algorithm
    assert algorithm.prior.strength == 0.5
    assert algorithm.prior.prior["weight"].equal(prior["weight"])


def test_where_to_start_is_a_path() -> None:
    assert RunSpec.from_dict({}).start is None
    assert RunSpec.from_dict(layered({"init": "runs/a"}, {"init": "runs/b"})).start == "runs/b"


def test_toml(tmp_path: Path) -> None:
    file = tmp_path / "my.toml"
    file.write_text('algorithm = "fedavg"\n[data]\nsamples = [10, 20]\n')
    assert RunSpec.from_dict(read_toml(file)).data.samples == (10, 20)
    file.write_text("[data]\nprecise = 200\n[augmentation]\nflip = true\nshift = 2\n")
    settings = RunSpec.from_dict(read_toml(file))
    assert settings.data.precise == 200
    assert settings.augmentation == Augmentation(flip=True, shift=2)
    file.write_text("a = = 3")
    with pytest.raises(SettingError, match="not valid TOML"):
        read_toml(file)
    file.write_bytes(b'a = "\xff"')
    with pytest.raises(SettingError, match="cannot be read"):
        read_toml(file)
    with pytest.raises(SettingError, match="there is no settings file"):
        read_toml(tmp_path / "no.toml")

"""The two presets, line by line against section 7 of the method's description."""

from __future__ import annotations

from typing import Any

import pytest

from fedmeta.algorithms import ALGORITHMS
from fedmeta.config.presets import PRESETS, preset
from fedmeta.config.spec import RunSpec, build_algorithm, layered
from fedmeta.core.errors import SettingError
from fedmeta.data import DataSettings

DATA = ("fashion-mnist", "cifar10", "cifar100")


def built(name: str, data: str, **more: Any) -> RunSpec:
    return RunSpec.from_dict(layered({"preset": name, "data": {"name": data}}, more))


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("name", PRESETS)
def test_every_key_is_a_setting(name: str, data: str) -> None:
    table = layered({"preset": name, "data": {"name": data}}, {})
    RunSpec.from_dict(table)
    for algorithm in ALGORITHMS:
        if algorithm in ("fedrep", "fedbabu"):  # they have a head, whatever others adapt
            with pytest.raises(SettingError, match="head"):
                build_algorithm(table, algorithm)
        else:
            build_algorithm(table, algorithm)


@pytest.mark.parametrize("name", [["cifar10"], {"a": 1}, 7])
def test_a_name_of_data_that_is_no_text_is_refused_in_one_line(name: Any) -> None:
    with pytest.raises(SettingError, match=r"data\.name is") as refused:
        built("paper", name)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("partition", [["random-classes"], {"a": 1}, 7])
def test_a_partition_that_is_no_text_is_refused_under_a_preset(partition: Any) -> None:
    with pytest.raises(SettingError, match="partition"):
        RunSpec.from_dict({"preset": "paper", "data": {"partition": partition}})


@pytest.mark.parametrize("data", DATA)
def test_paper(data: str) -> None:
    settings = built("paper", data)
    admm: Any = settings.algorithm
    assert settings.data.nodes == (100 if data == "cifar100" else 50)
    assert settings.data.target_share == 0.2
    assert settings.training.rounds == 100
    assert not settings.augmentation.resolved((3, 32, 32)).active
    # Classes of a node, samples, support share.
    assert settings.data.partition == "random-classes"
    assert settings.data.classes_per_node == 2
    assert settings.data.samples == (20, 40)
    assert settings.data.samples_per_class is None
    assert settings.data.support_share == 0.5
    # ρ, δ_t, y⁰, platform step, α.
    assert admm.penalty == (0.3 if data == "fashion-mnist" else 0.7)
    assert admm.curvature == "finite-difference"
    assert (admm.difference.growth, admm.difference.offset, admm.difference.power) == (10, 100, 1)
    assert admm.dual_deviation == 0
    assert admm.platform == "linearised"
    assert (admm.inner.step_size, admm.inner.steps) == (0.01, 1)
    # Activation, pooling, initial weights, scaling.
    assert settings.model.activation == "elu"
    assert settings.model.last_pooling == ("max" if data == "fashion-mnist" else "average")
    assert settings.model.initialisation == "truncated-normal"
    assert settings.data.scaling == "per-feature"
    assert settings.data.scaling_from == "sources"
    assert settings.data.scaling_floor == DataSettings().scaling_floor


@pytest.mark.parametrize("data", DATA)
def test_authors(data: str) -> None:
    settings = built("authors", data)
    admm: Any = settings.algorithm
    fashion = data == "fashion-mnist"
    assert settings.data.partition == "fixed-pairs"
    assert settings.data.samples_per_class == (10, 20)
    assert settings.data.support_share == (0.2 if fashion else 0.5)
    assert admm.penalty == (0.35 if fashion else 0.7)
    assert (admm.difference.growth, admm.difference.offset, admm.difference.power) == (1, 100, 1)
    assert settings.model.activation == ("leaky-relu" if data == "cifar10" else "elu")
    assert settings.model.last_pooling == ("max" if fashion else "average")
    assert settings.model.initialisation == "truncated-normal"
    assert admm.dual_deviation == 0.01
    assert admm.platform == "proximal"
    assert settings.data.scaling == "per-feature"
    assert settings.data.scaling_from == "pool"
    assert settings.data.scaling_floor == 0


@pytest.mark.parametrize("name", PRESETS)
def test_baselines(name: str) -> None:
    for data, beta in (("fashion-mnist", 0.005), ("cifar10", 0.005), ("cifar100", 0.001)):
        per: Any = built(name, data, algorithm="per-fedavg").algorithm
        assert (per.step_size, per.inner.step_size) == (beta, 0.01)
        assert per.curvature == "finite-difference"
        growth = 1 if name == "authors" else 10
        assert (per.difference.growth, per.difference.offset) == (growth, 100)
        average: Any = built(name, data, algorithm="fedavg").algorithm
        assert average.step_size == 0.01


def test_presets_do_not_change_each_other() -> None:
    before = preset("paper", "cifar10")
    preset("authors", "cifar10")["data"]["nodes"] = 3
    assert preset("paper", "cifar10") == before


def test_own_data_take_those_of_cifar10() -> None:
    assert preset("paper", "mine.csv") == preset("paper", "cifar10")


@pytest.mark.parametrize("name", PRESETS)
def test_data_with_nodes_of_their_own(name: str) -> None:
    table = {"preset": name, "data": {"name": "mine.csv", "node": "device"}}
    settings = RunSpec.from_dict(layered(table, {}))
    assert settings.data.resolved().partition == "column"
    assert built(name, "sinusoid").data.resolved().partition == "column"


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("partition", ["dirichlet", "episodes", "column"])
def test_other_partitions_do_not_look_at_samples_per_class(name: str, partition: str) -> None:
    data = {"name": "mine.csv", "node": "device"} if partition == "column" else {"name": "digits"}
    flags = {"data": {"partition": partition}}
    settings = RunSpec.from_dict(layered({"preset": name, "data": data}, flags)).data
    assert (settings.partition, settings.samples_per_class) == (partition, None)


def test_unknown() -> None:
    with pytest.raises(SettingError, match="did you mean 'paper'"):
        preset("papers", "cifar10")

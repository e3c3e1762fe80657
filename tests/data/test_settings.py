import re
from dataclasses import FrozenInstanceError

import pytest

from fedmeta.core.errors import SettingError
from fedmeta.data import DataSettings


def test_lists_from_toml_become_tuples():
    settings = DataSettings(
        samples=[10, 20], samples_per_class=[10, 20], targets=["node-001"], support_share=0.2
    )
    assert settings.samples == (10, 20)
    assert settings.samples_per_class == (10, 20)
    assert settings.targets == ("node-001",)
    hash(settings)
    with pytest.raises(FrozenInstanceError):
        settings.nodes = 3


def test_scaling_floor_may_be_both_ends():
    assert [DataSettings(scaling_floor=v).scaling_floor for v in (0, 1)] == [0, 1]
    assert DataSettings().scaling_floor == 0.05


@pytest.mark.parametrize(
    ("fields", "partition", "task"),
    [
        ({}, "random-classes", "classification"),
        ({"name": "own.csv", "node": "user"}, "column", "classification"),
        ({"name": "own.csv", "node": "user", "partition": "column"}, "column", "classification"),
        ({"name": "own.csv", "node": "user", "task": "regression"}, "column", "regression"),
        ({"name": "sinusoid"}, "column", "regression"),
        ({"partition": "dirichlet"}, "dirichlet", "classification"),
    ],
)
def test_resolved_fills_in_partition_and_task(fields, partition, task):
    resolved = DataSettings(**fields).resolved()
    assert (resolved.partition, resolved.task) == (partition, task)
    assert resolved.resolved() is resolved


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": ""}, "name is '': give a text that is not empty"),
        ({"folder": 3}, "folder is 3"),
        ({"partition": "dirichlit"}, "partition is 'dirichlit': did you mean 'dirichlet'"),
        ({"task": "ranking"}, "task is 'ranking'"),
        ({"scaling": "pixel"}, "scaling is 'pixel'"),
        ({"scaling_from": "targets"}, "scaling_from is 'targets'"),
        ({"nodes": 0}, "nodes is 0: give a whole number of at least 1"),
        ({"nodes": True}, "nodes is True"),
        ({"nodes": 2.0}, "nodes is 2.0"),
        ({"classes_per_node": 0}, "classes_per_node is 0"),
        ({"shots": 0}, "shots is 0"),
        ({"queries": -1}, "queries is -1"),
        ({"min_samples": 1}, "min_samples is 1: give a whole number of at least 2"),
        ({"samples": (1, 5)}, "samples is (1, 5)"),
        ({"samples": (9, 5)}, "samples is (9, 5)"),
        ({"samples": 9}, "samples is 9"),
        ({"samples": (3, 5, 7)}, "two whole numbers"),
        ({"samples_per_class": [0, 5]}, "samples_per_class is [0, 5]"),
        ({"concentration": 0}, "concentration is 0: give a number greater than 0"),
        ({"concentration": float("nan")}, "concentration is nan"),
        ({"concentration": "1"}, "concentration is '1'"),
        ({"support_share": 1.0}, "support_share is 1.0: give a number between 0 and 1"),
        ({"target_share": 1.0}, "target_share is 1.0: give a number from 0 to below 1"),
        ({"target_share": -0.1}, "target_share is -0.1"),
        ({"scaling_floor": -0.1}, "scaling_floor is -0.1: give a number from 0 to 1"),
        ({"scaling_floor": 12.75}, "scaling_floor is 12.75"),
        ({"scaling_floor": True}, "scaling_floor is True"),
        ({"targets": "node-001"}, "targets is 'node-001'"),
        ({"targets": [1]}, "targets is [1]"),
        ({"precise": -1}, "precise is -1: give a whole number of at least 0"),
        ({"precise": True}, "precise is True"),
        (
            {"precise": 9, "name": "a.csv", "node": "u"},
            "precise is 9 but partition is 'column', where a node's samples are its own",
        ),
        ({"precise": 9, "name": "sinusoid"}, "'sinusoid' is a regression task, which has no class"),
        (
            {"precise": 9, "name": "a.csv", "node": "u", "task": "regression"},
            "'a.csv' is a regression task",
        ),
        ({"precise": 9, "partition": "episodes"}, "every node numbers its classes anew"),
        ({"node": "user"}, "the built-in 'digits' has no columns"),
        ({"label": "kind"}, "leave label out"),
        ({"task": "regression"}, "'digits' is a classification task"),
        ({"name": "sinusoid", "partition": "dirichlet"}, "'sinusoid' comes with its nodes"),
        ({"name": "a.csv", "partition": "column"}, "node is not given"),
        ({"name": "a.csv", "partition": "dirichlet", "node": "u"}, "leave one of the two out"),
        ({"name": "a.csv", "task": "regression"}, "needs classes"),
        ({"partition": "dirichlet", "samples_per_class": (2, 3)}, "goes with 'random-classes'"),
        ({"partition": "fixed-pairs", "classes_per_node": 3}, "'fixed-pairs' needs 2"),
        ({"classes_per_node": 30}, "only 20 samples"),
        ({"classes_per_node": 1, "samples_per_class": (1, 3)}, "only 1 samples"),
    ],
)
def test_what_makes_no_sense_is_refused(fields, message):
    with pytest.raises(SettingError, match=re.escape(message)):
        DataSettings(**fields)

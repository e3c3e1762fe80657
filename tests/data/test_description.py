import json

import numpy as np

from fedmeta.data import DataSettings, Federation, Node, Task, describe, load


def test_counts_by_hand():
    nodes = [
        Node("a", "source", np.array([0, 1]), np.array([2])),
        Node("b", "target", np.array([3]), np.array([4]), np.array([4, 5])),
    ]
    task = Task("classification", 2, ("no", "yes"))
    inputs, labels = np.zeros((6, 1, 8, 8)), np.array([0, 1, 1, 1, 1, 1])
    data = Federation(inputs, labels, task, nodes, "d", ("n",))
    assert describe(data) == {
        "name": "d",
        "task": {"kind": "classification", "outputs": 2, "class_names": ["no", "yes"]},
        "input_shape": [1, 8, 8],
        "features": [],
        "counts": {"nodes": 2, "sources": 1, "targets": 1, "samples": 5},
        "notes": ["n"],
        "nodes": [
            {
                "name": "a",
                "role": "source",
                "support": 2,
                "query": 1,
                "precise": 0,
                "classes": {"no": 1, "yes": 2},
            },
            {
                "name": "b",
                "role": "target",
                "support": 1,
                "query": 1,
                "precise": 2,
                "classes": {"yes": 2},
            },
        ],
    }


def test_json_can_hold_it():
    for settings in (DataSettings(), DataSettings("sinusoid"), DataSettings(partition="episodes")):
        text = json.dumps(describe(load(settings, 0)))
        assert json.loads(text)["counts"]["nodes"] == 50


def test_classes_without_names_are_numbered():
    node = Node("a", "source", np.array([0]), np.array([1]))
    task = Task("classification", 2)
    data = Federation(np.zeros((2, 1)), np.array([0, 1]), task, [node], features=("f",))
    assert describe(data)["features"] == ["f"]
    assert describe(data)["nodes"][0]["classes"] == {"0": 1, "1": 1}

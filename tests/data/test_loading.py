import numpy as np
import pytest
import torch
from PIL import Image

from fedmeta.core.errors import DataError, SettingError
from fedmeta.data import DataSettings, deal_out, federate, load, read
from fedmeta.data.encoding import Encoding

from .conftest import pool_of


def places(federation):
    return [(n.name, n.role, n.support.tolist(), n.query.tolist()) for n in federation.nodes]


@pytest.mark.parametrize("partition", ["random-classes", "fixed-pairs", "dirichlet", "episodes"])
def test_same_seed_same_federation(partition):
    settings = DataSettings(partition=partition, nodes=20)
    one, same, other = (load(settings, seed) for seed in (3, 3, 4))
    assert places(one) == places(same)
    assert places(one) != places(other)
    assert len(one.targets) == 4


def test_steps_are_drawn_independently():
    base, share, targets = (
        load(DataSettings(nodes=20, **fields), 0)
        for fields in ({}, {"support_share": 0.2}, {"target_share": 0.5})
    )
    for a, b in zip(base.nodes, share.nodes, strict=True):
        assert a.role == b.role
        assert sorted(np.r_[a.support, a.query]) == sorted(np.r_[b.support, b.query])
    assert [p[2:] for p in places(base)] == [p[2:] for p in places(targets)]


def test_authors_partition_of_digits():
    settings = DataSettings(
        partition="fixed-pairs", nodes=40, samples_per_class=(10, 20), support_share=0.2
    )
    for node in load(settings, 0).nodes:
        assert abs(len(node.support) - 0.2 * node.size) <= 1


def test_small_nodes_are_dropped_with_a_note():
    owners = np.repeat(np.arange(9), [1, 1, 1, 1, 1, 1, 5, 6, 2])
    data = federate(np.zeros((19, 2)), np.arange(19) % 2, node=owners, min_samples=3)
    assert [node.name for node in data.nodes] == ["6", "7"]
    assert data.notes == (
        "7 of 9 nodes were dropped because they have fewer than 3 samples: 0, 1, 2, 3, 4, …",
    )
    with pytest.raises(DataError, match=r"none of the 9 nodes .* has 7 samples; .* has 6"):
        federate(np.zeros((19, 2)), np.arange(19) % 2, node=owners, min_samples=7)


def test_federate_takes_tensors_and_arrays():
    x, y = torch.randn(60, 3), torch.arange(60) % 3
    tensors = federate(x, y, nodes=5, samples=(8, 10), seed=1)
    arrays = federate(x.numpy(), y.numpy(), nodes=5, samples=(8, 10), seed=1, name="mine")
    assert places(tensors) == places(arrays)
    assert (tensors.name, arrays.name) == ("own data", "mine")
    values = federate(x, x[:, :2], node=y, task="regression")
    assert (values.task.kind, values.task.outputs) == ("regression", 2)
    with pytest.raises(SettingError, match="federate takes no 'label'"):
        federate(x, y, label="z")


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float8_e5m2, torch.float16])
def test_federate_takes_tensors_that_numpy_lacks(kind):
    x, y = torch.arange(16.0).reshape(8, 2).to(kind), torch.arange(8) % 2
    data = federate(x, y.to(kind), node=(torch.arange(8) // 4).to(kind))
    assert data.inputs.dtype == np.float32
    assert (data.inputs == x.float().numpy()).all()
    assert [node.name for node in data.nodes] == ["0", "1"]


def test_federate_takes_objects():
    owners = np.array(["u"] * 4 + ["v"] * 4, dtype=object)
    data = federate(np.zeros((8, 2)), np.array([3, 4] * 4, dtype=object), node=owners)
    assert data.task.class_names == ("3", "4")
    assert [node.name for node in data.nodes] == ["u", "v"]
    with pytest.raises(DataError, match="labels of own data are objects of type int, str"):
        federate(np.zeros((2, 2)), np.array([3, "a"], dtype=object))


@pytest.mark.parametrize("partition", ["random-classes", "episodes"])
def test_feature_names_go_along(tmp_path, partition):
    path = tmp_path / "a.csv"
    path.write_text("f,g,label\n" + "1,2,a\n2,1,b\n" * 40)
    settings = DataSettings(str(path), partition=partition, nodes=4, samples=(4, 6))
    data = load(settings, 0)
    assert data.features == ("f", "g")
    assert data.hold_out(0.5, 0).features == ("f", "g")
    some = deal_out(read(settings, 0, Encoding.of_features(["g"])), settings, 0)
    assert (some.features, some.inputs.shape) == (("g",), (80, 1))


def test_only_tables_have_feature_names(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros((4, 2)), y=np.arange(4) % 2)
    for name in ("digits", "sinusoid", str(tmp_path / "a.npz")):
        pool = read(DataSettings(name, nodes=2), 0, Encoding.of_features(["a"]))
        assert pool.features == ()


def test_named_targets():
    data = federate(
        np.zeros((9, 1)), np.arange(9) % 2, np.repeat(["a", "b", "c"], 3), targets=["b"]
    )
    assert [node.name for node in data.targets] == ["b"]


def test_sinusoid_nodes():
    data = load(DataSettings("sinusoid", nodes=10, samples=(20, 30)), 0)
    assert [node.name for node in data.nodes][:2] == ["node-000", "node-001"]
    assert data.labels.shape == (len(data.inputs), 1)


def test_half_of_the_classes_keeps_the_head():
    pool = pool_of(*[50] * 10).only(range(5, 10))
    data = deal_out(pool, DataSettings("toy", nodes=10, samples=(10, 12)), 0)
    assert data.task.outputs == 10
    held = np.concatenate([node.support for node in data.nodes])
    assert set(data.labels[held]) == set(range(5, 10))


def test_every_kind_of_file_is_found_by_its_name(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros((40, 2)), y=np.arange(40) % 2)
    (tmp_path / "a.csv").write_text("f,label\n" + "1,a\n2,b\n" * 20)
    for name in "pq":
        (tmp_path / "images" / name).mkdir(parents=True)
        for i in range(20):
            Image.new("L", (4, 4), i).save(tmp_path / "images" / name / f"{i}.png")
    for name, shape in [("a.npz", (2,)), ("a.csv", (1,)), ("images", (1, 4, 4))]:
        data = load(DataSettings(str(tmp_path / name), nodes=3, samples=(4, 6)), 0)
        assert data.inputs.shape == (40, *shape)


def test_what_cannot_be_read_is_told(tmp_path):
    (tmp_path / "a.txt").write_text("x")
    for name, message in [
        ("fashon-mnist", "no data set 'fashon-mnist': did you mean 'fashion-mnist'?"),
        ("nowhere.csv", "there is no file or folder nowhere.csv"),
        (str(tmp_path / "b"), "there is no file or folder"),
        (str(tmp_path / "a.txt"), "give .npz, .csv, .tsv, .csv.gz, .tsv.gz or .parquet"),
    ]:
        with pytest.raises(DataError) as error:
            load(DataSettings(name), 0)
        assert message in str(error.value)
    with pytest.raises(SettingError, match="is a folder of images"):
        load(DataSettings(str(tmp_path), node="user"), 0)


@pytest.mark.parametrize("name", ["fashion-mnist", "cifar10", "cifar100"])
def test_real_data_sets(name, real_data):
    data = load(DataSettings(name, folder=str(real_data)), 0)
    assert (len(data.sources), len(data.targets)) == (40, 10)
    assert data.notes == (f"15000 samples from {name.replace('-', '_')}.npz",)


def test_real_subset_by_path(real_data):
    path = real_data / "small" / "cifar10_5k.npz"
    assert load(DataSettings(str(path)), 0).inputs.shape == (5000, 3, 32, 32)

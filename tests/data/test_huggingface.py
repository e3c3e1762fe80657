"""Data of the Hugging Face hub: from a local folder with the real libraries, never the network."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from cli.calling import spawn, succeed
from fedmeta.core.errors import DataError, MissingExtraError, SettingError
from fedmeta.data.readers.huggingface import read_huggingface
from fedmeta.data.readers.npz import read_npz


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with one table, and the libraries kept off the network and in a folder of ours."""
    home = tmp_path_factory.mktemp("hub")
    folder = home / "motion"
    folder.mkdir()
    rng = np.random.default_rng(0)
    rows = [f"{x:.3f},{i % 7},{'ab'[i % 2]},u{i % 4}" for i, x in enumerate(rng.normal(size=80))]
    (folder / "train.csv").write_text("speed,steps,label,user\n" + "\n".join(rows) + "\n")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("HF_HUB_OFFLINE", "1"), ("HF_HOME", str(home))):
            patch.setenv(name, value)  # before they are imported, which is when they look
        pytest.importorskip("flwr_datasets")
        yield folder


@pytest.mark.filterwarnings("default")
def test_a_table_dealt_out_by_users(table: Path) -> None:
    found = read_huggingface(
        str(table), partitioner="NaturalIdPartitioner", options={"partition_by": "user"}
    )
    assert found["x"].shape == (80, 2)
    assert sorted(found["node"].tolist()) == sorted([0, 1, 2, 3] * 20)
    first = found["x"][found["node"] == 0]
    assert set(first[:, 1].astype(int)) == {i % 7 for i in range(0, 80, 4)}
    assert set(found["y"].tolist()) == {"a", "b"}


@pytest.mark.filterwarnings("default")
def test_without_a_partitioner_there_are_no_nodes(table: Path) -> None:
    assert set(read_huggingface(str(table))) == {"x", "y"}


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"label": "lable"}, "did you mean 'label'"),
        ({"partitioner": "IidPartitoner"}, "did you mean 'IidPartitioner'"),
        ({"partitioner": "IidPartitioner", "options": {"parts": 3}}, "it takes num_partitions"),
        (
            {
                "partitioner": "DirichletPartitioner",
                "options": {"num_partitions": 3, "partition_by": "nobody", "alpha": 1.0},
            },
            "cannot deal out",
        ),
    ],
)
def test_what_is_wrong_is_said(table: Path, arguments: dict[str, object], words: str) -> None:
    with pytest.raises((DataError, SettingError), match=words):
        read_huggingface(str(table), **arguments)  # type: ignore[arg-type]


@pytest.mark.filterwarnings("default")
def test_offline_it_says_so(table: Path) -> None:
    with pytest.raises(DataError, match="offline only local folders"):
        read_huggingface("nobody/nothing")


@pytest.mark.filterwarnings("default")
def test_images_through_the_command_line(table: Path, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(0)
    for label in ("cat", "dog"):
        (tmp_path / "pets/train" / label).mkdir(parents=True)
        for number in range(20):
            pixels = rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)
            image.fromarray(pixels).save(tmp_path / f"pets/train/{label}/{number}.png")
    options = (
        "DirichletPartitioner:num_partitions=3,partition_by=label,alpha=5,min_partition_size=4"
    )
    outcome = spawn(
        ["data", "get", f"huggingface:{tmp_path / 'pets'}", "--partitioner", options], tmp_path
    )
    assert outcome.code == 0, outcome.err
    assert "40 samples of 3 nodes of shape (8, 8, 3) written to pets.npz" in outcome.out
    pool = read_npz(tmp_path / "pets.npz", node="node")
    assert pool.class_names == ("cat", "dog")
    assert pool.inputs.shape == (40, 3, 8, 8)
    assert "3 nodes" in succeed(f"data --data {tmp_path}/pets.npz --node node")


def test_the_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtraError, match=r"fedmeta\[huggingface\]"):
        read_huggingface("any")

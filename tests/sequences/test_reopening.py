"""The nodes of a task are found again from its folder alone."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fedmeta.core.errors import RunFolderError, SettingError
from fedmeta.core.run_folder import RunFolder
from fedmeta.fleet.reopen import own_federation
from fedmeta.studies.sequences import run_sequence
from fedmeta.studies.sequences.folder import begin
from fedmeta.studies.sequences.reopening import in_sequence
from fedmeta.training.resume import federation_digest
from sequences.problems import small

METHODS = ("none", "replay+euclidean", "isolation", "joint")


@pytest.fixture(scope="module")
def sequence(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sequences") / "small"
    begin(folder, small(), METHODS, [0, 1])
    for method in METHODS:
        run_sequence(small(method), [0, 1], folder=folder / method)
    return folder


@pytest.mark.parametrize("method", METHODS)
def test_the_nodes_of_every_task(sequence: Path, method: str) -> None:
    runs = [each.parent for each in (sequence / method).rglob("settings.json")]
    assert len(runs) == (2 if method == "joint" else 6)
    for run in runs:
        folder = RunFolder.open(run)
        found = own_federation(folder)
        assert federation_digest(found) == folder.settings()["federation"]
        assert found.targets


def test_precise_sets_belong_to_the_whole(sequence: Path) -> None:
    with pytest.raises(SettingError, match="task of a sequence"):
        own_federation(RunFolder.open(sequence / "none/seed-0/2-2-3"), precise=5)


def test_tasks_that_were_moved(sequence: Path, tmp_path: Path) -> None:
    moved = tmp_path / "small/none/seed-0/renamed"
    shutil.copytree(sequence / "none/seed-0/2-2-3", moved)
    assert not in_sequence(moved)
    with pytest.raises(RunFolderError, match="have changed"):
        own_federation(RunFolder.open(moved))
    shutil.copy(sequence / "declaration.json", tmp_path / "small/declaration.json")
    with pytest.raises(RunFolderError, match="not a task of the sequence"):
        own_federation(RunFolder.open(moved))

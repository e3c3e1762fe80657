"""A finished run whose files were changed is noticed; an interrupted one goes on."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import pytest

from fedmeta import MetaModel, Run, RunSpec, train_spec
from fedmeta.core.errors import RunFolderError
from fedmeta.core.run_folder import RunFolder

SPEC = RunSpec.from_dict(
    {
        "data": {"name": "sinusoid", "nodes": 6, "samples": [6, 9]},
        "model": {"hidden": [4]},
        "training": {"rounds": 6, "checkpoint_every": 2},
    }
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("manifest") / "run"
    train_spec(SPEC, folder=folder)
    return folder


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def test_it_lists_all_files(run: Path) -> None:
    listed = json.loads((run / "manifest.json").read_text())["sha256"]
    names = {"settings.json", "federation.json", "metrics.jsonl", "model.safetensors"}
    assert set(listed) == names | {"summary.json"}
    Run.load(run)
    assert RunFolder.open(run).note() is None


def test_every_bit_flip_of_the_model_is_noticed(run: Path) -> None:
    file, luck = run / "model.safetensors", random.Random(0)
    whole = file.read_bytes()
    for _ in range(60):
        changed = bytearray(whole)
        changed[luck.randrange(len(whole))] ^= 1 << luck.randrange(8)
        file.write_bytes(changed)
        with pytest.raises(RunFolderError, match="is damaged"):
            MetaModel.load(run)


def test_flips_in_the_numbers_of_a_copied_model_are_noticed(run: Path, tmp_path: Path) -> None:
    whole, luck = (run / "model.safetensors").read_bytes(), random.Random(1)
    copy, start = tmp_path / "copy.safetensors", 8 + int.from_bytes(whole[:8], "little")
    for _ in range(20):
        changed = bytearray(whole)
        changed[luck.randrange(start, len(whole))] ^= 1 << luck.randrange(8)
        copy.write_bytes(changed)
        with pytest.raises(RunFolderError):
            MetaModel.load(copy)


def _altered(text: str) -> list[str]:
    """Rounds with other numbers, left out, doubled, in another order."""
    lines = text.splitlines(keepends=True)
    found = ["".join(lines[:i] + lines[i + 1 :]) for i in range(6)]
    found += ["".join(lines[: i + 1] + lines[i:]) for i in range(6)]
    found += [text.replace(line, line.replace("0.", "1.", 1)) for line in lines]
    assert len({*found, text}) == 19
    return found


def test_all_altered_metrics_are_noticed(run: Path) -> None:
    file = run / "metrics.jsonl"
    for text in _altered(file.read_text()):
        file.write_text(text)
        with pytest.raises(RunFolderError, match="is damaged"):
            RunFolder.open(run).history()


def test_an_interrupted_run_with_altered_metrics_does_not_go_on(run: Path) -> None:
    for name in ("manifest.json", "summary.json", "model.safetensors"):
        (run / name).unlink()
    shutil.rmtree(run / "checkpoints/round-000006")
    file = run / "metrics.jsonl"
    text = file.read_text()
    for altered in (text.replace("0.", "1.", 1), "".join(text.splitlines(keepends=True)[1:])):
        file.write_text(altered)
        with pytest.raises(RunFolderError, match="its rounds are not those"):
            train_spec(SPEC, folder=run, resume=True)
    file.write_text(text)
    train_spec(SPEC, folder=run, resume=True)
    assert (run / "manifest.json").is_file()


def test_going_on_takes_the_manifest_away_and_writes_it_again(run: Path) -> None:
    before = (run / "manifest.json").read_text()
    train_spec(SPEC.replaced(rounds=8), folder=run, resume=True)
    assert (run / "manifest.json").read_text() != before
    assert len(Run.load(run).history) == 8


def test_folders_without_one_open_with_a_note(run: Path) -> None:
    (run / "manifest.json").unlink()
    Run.load(run)
    assert "cannot be checked" in str(RunFolder.open(run).note())


@pytest.mark.parametrize("text", ["{", "[]", '{"format": 1}', '{"format": 9, "sha256": {}}'])
def test_a_manifest_that_is_none(run: Path, text: str) -> None:
    (run / "manifest.json").write_text(text)
    with pytest.raises(RunFolderError, match=r"manifest\.json"):
        Run.load(run)

"""How far it is from `fedmeta.train` to the meta-gradient: seven or eight frames of ours."""

from __future__ import annotations

import traceback
from pathlib import Path

import pytest

import fedmeta
from fedmeta.algorithms import admm_fedmeta

SOURCES = Path(fedmeta.__file__).parent
MOST = {"loop": 7, "batched": 8}


@pytest.mark.parametrize("path", ["loop", "batched"])
def test_frames_between_train_and_the_meta_gradient(
    path: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stacks: list[list[str]] = []
    original = admm_fedmeta.meta_gradient

    def watched(*arguments: object) -> object:
        frames = traceback.extract_stack()
        ours = [each for each in frames if SOURCES in Path(each.filename).parents]
        stacks.append([f"{Path(each.filename).name}:{each.name}" for each in ours])
        return original(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(admm_fedmeta, "meta_gradient", watched)
    federation = fedmeta.load(fedmeta.DataSettings("sinusoid", nodes=6), seed=0)
    model, execution = fedmeta.ModelSettings("mlp"), fedmeta.Execution(path=path)  # type: ignore[arg-type]
    fedmeta.train(federation, model, rounds=1, execution=execution)
    longest = max(stacks, key=len)
    with capsys.disabled():
        print(f"\n{path}: " + " → ".join(longest))
    begin = longest.index("train.py:train") + 1 if "train.py:train" in longest else 0
    assert longest[-1] == "admm_fedmeta.py:node_step"
    # A recording is made once; replays of it enter no frame of ours below.
    assert sum(not each.startswith("recording.py") for each in longest[begin:]) <= MOST[path]
    if path == "loop":  # the others may be computed on worker threads, whose stacks begin there
        assert begin > 0

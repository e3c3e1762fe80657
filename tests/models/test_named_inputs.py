"""Several inputs and sequences, from what people have to the exported file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cli.calling import succeed
from fedmeta import Execution, MetaModel, export_onnx, federate, train
from fedmeta.core.errors import FedmetaError
from fedmeta.data.named_inputs import InputParts
from fedmeta.data.scaling import fit_scaling

COUNT = 96
RNG = np.random.default_rng(0)
NODE, LABELS = np.arange(COUNT) // 12, np.arange(COUNT) % 3
PAIR = {"x1": RNG.normal(size=(COUNT, 3)) * 10 + 5, "x2": RNG.integers(20, size=(COUNT, 4))}
TOKENS = [RNG.integers(1, 20, size=RNG.integers(1, 7)) for _ in range(COUNT)]
SERIES = [RNG.normal(size=(RNG.integers(1, 7), 2)) * 7 + 3 for _ in range(COUNT)]


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.numbers, self.words = nn.Linear(3, 5), nn.Embedding(20, 5)
        self.head = nn.Linear(5, 3)

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        return self.head(torch.tanh(self.numbers(x1) + self.words(x2).mean(1)))


class Batch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.pair = Pair()

    def forward(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"logits": self.pair(batch["x1"], batch["x2"])}


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(20, 5), nn.Linear(5, 3)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        total = (self.words(tokens) * mask[..., None]).sum(1)
        return self.head(torch.tanh(total / mask.sum(1, keepdim=True)))


class Counted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(2, 5), nn.Linear(5, 3)

    def forward(self, series: Tensor, lengths: Tensor) -> Tensor:
        real = torch.arange(series.shape[1], device=series.device) < lengths[:, None]
        found = torch.tanh(self.first(series)) * real[..., None]
        return self.head(found.sum(1) / lengths[:, None])


KINDS: dict[str, tuple[Any, type[nn.Module]]] = {
    "by name": (PAIR, Pair),
    "as a mapping per sample": ([{k: v[i] for k, v in PAIR.items()} for i in range(COUNT)], Batch),
    "tokens and a mask": (TOKENS, Masked),
    "series and lengths": (SERIES, Counted),
}


def first(data: Any, count: int) -> Any:
    return {k: v[:count] for k, v in data.items()} if isinstance(data, dict) else data[:count]


@pytest.mark.parametrize("kind", KINDS)
def test_all_the_way(kind: str, tmp_path: Path) -> None:
    data, make = KINDS[kind]
    federation, models = federate(data, LABELS, NODE), []
    for path in ("batched", "loop"):
        torch.manual_seed(0)
        execution = Execution(path=path, dtype="float64")  # type: ignore[arg-type]
        models.append(train(federation, make(), rounds=2, execution=execution).meta_model)
    one, other = models
    for name, leaf in one.theta.items():
        assert torch.allclose(leaf, other.theta[name], rtol=1e-9, atol=1e-12)
    few, names = first(data, 5), [one.task.class_names[label] for label in LABELS[:5]]
    assert torch.allclose(one.predict(few), one.predict(federation.inputs[:5]))
    adapted = one.adapt(few, names)
    adapted.save(tmp_path / "own.safetensors")
    again = MetaModel.load(tmp_path / "own.safetensors", make().double())
    assert torch.equal(again.predict(few), adapted.predict(few))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_exported_and_adapted_on_a_device(kind: str, tmp_path: Path) -> None:
    edge = pytest.importorskip("fedmeta_edge")
    data, make = KINDS[kind]
    torch.manual_seed(0)
    model = train(federate(data, LABELS, NODE), make(), rounds=2).meta_model
    export_onnx(model, tmp_path / "own.onnx", adaptable=True)
    device = edge.load(tmp_path / "own.onnx")
    arrays: dict[str, Any] = first(data, 6) if isinstance(data, dict) else {}
    if kind == "as a mapping per sample":
        arrays = {key: PAIR[key][:6] for key in PAIR}
    if not arrays:  # padded, as a file has to have them
        few = first(data, 6)
        longest = max(map(len, few))
        padded = np.zeros((6, longest, *few[0].shape[1:]))
        for row, steps in enumerate(few):
            padded[row, : len(steps)] = steps
        arrays = {"x": padded, "lengths": np.array([*map(len, few)])}
    np.savez(tmp_path / "own.npz", **arrays, y=LABELS[:6])
    own = edge.read_samples(tmp_path / "own.npz", device)
    weights = edge.adapt(device, own.inputs, own.labels).weights
    wanted = model.adapt(first(data, 6), LABELS[:6]).predict(first(data, 6))
    assert np.allclose(edge.predict(device, own.inputs, weights), wanted.numpy(), atol=1e-4)


def test_what_counts_for_the_scaling() -> None:
    """Numbers alone, over real steps alone; tokens and masks stay as they are."""
    mask = RNG.integers(2, size=(COUNT, 4)).astype(float)
    data = {"series": SERIES, "x": PAIR["x1"], "words": PAIR["x2"], "mask": mask}
    federation = federate(data, LABELS, NODE)
    held = np.concatenate([p for n in federation.sources for p in (n.support, n.query)])
    scaling = fit_scaling(federation)
    rows = scaling.apply(federation.inputs[held], torch.float64)
    assert federation.parts is not None
    found = federation.parts.split(rows)
    real = found["series"][found["series_mask"]]
    assert torch.allclose(real.mean(0), torch.zeros(2).double(), atol=1e-6)
    assert torch.allclose(real.std(0, correction=0), torch.ones(2).double(), rtol=1e-6)
    assert bool((found["series"][~found["series_mask"]] == 0).all())
    assert torch.allclose(found["x"].mean(0), torch.zeros(3).double(), atol=1e-6)
    assert torch.equal(found["words"], torch.from_numpy(PAIR["x2"][held]))
    assert torch.equal(found["mask"], torch.from_numpy(mask[held] > 0))


def test_padding_says_nothing() -> None:
    """A sequence among longer ones and among shorter ones: the same answer."""
    torch.manual_seed(0)
    model = train(federate(TOKENS, LABELS, NODE), Masked(), rounds=1).meta_model
    short = [each for each in TOKENS if len(each) == 2][:2]
    assert torch.equal(model.predict(short), model.predict([*short, *TOKENS])[:2])


WRONG: dict[str, tuple[Any, type[nn.Module], str]] = {
    "another name": (
        {"a": PAIR["x1"], "b": PAIR["x2"]},
        Pair,
        "\\(x1, x2\\).*are a, b",
    ),
    "a negative token": ({**PAIR, "x2": PAIR["x2"] - 9}, Pair, "'x2' has -9.*from 0 on"),
    "too large a token": ({**PAIR, "x2": PAIR["x2"] + 2**24}, Pair, "tokens are below 16777216"),
    "a missing number": ({**PAIR, "x1": PAIR["x1"] * np.nan}, Pair, "'x1' has NaN"),
    "another count": ({**PAIR, "x1": PAIR["x1"][:9]}, Pair, "different numbers of samples"),
    "an empty one": ([*TOKENS[:-1], np.array([], int)], Masked, "'x' has no steps"),
    "no argument's name": ({"a b": PAIR["x1"], "x2": PAIR["x2"]}, Pair, "called 'a b'"),
    "a token that is not known": (
        {**PAIR, "x2": PAIR["x2"] + 1},
        Pair,
        "token 20, .*knows 20",
    ),
}


@pytest.mark.parametrize("kind", WRONG)
def test_one_clear_line(kind: str) -> None:
    data, make, message = WRONG[kind]
    with pytest.raises(FedmetaError, match=message) as caught:
        train(federate(data, LABELS, NODE), make(), rounds=1)
    assert "\n" not in str(caught.value)


def test_other_samples_than_in_training() -> None:
    torch.manual_seed(0)
    model = train(federate(TOKENS, LABELS, NODE), Masked(), rounds=1).meta_model
    with pytest.raises(FedmetaError, match=r"sample 1 of input 'x'.*1 to 6 steps"):
        model.predict([np.arange(1, 9), np.arange(1, 3)])
    with pytest.raises(FedmetaError, match="have 'y', unlike"):
        model.predict({"x": TOKENS[:2], "y": TOKENS[:2]})


def test_clients_with_several_inputs() -> None:
    clients = {
        f"client-{c}": ({k: v[c == NODE] for k, v in PAIR.items()}, LABELS[c == NODE])
        for c in range(8)
    }
    federation = federate(clients)
    assert federation.parts == InputParts.of(PAIR)[0]
    assert np.allclose(federation.inputs[:, :3], PAIR["x1"])


def test_whole_numbers_are_exact() -> None:
    large = np.array([[2**24 - 1, 3], [2**24 - 2, 4]])
    parts, rows = InputParts.of({"words": large, "x": np.zeros((2, 1))})
    assert torch.equal(parts.split(torch.from_numpy(rows))["words"], torch.from_numpy(large))


OWN = """
import torch
from torch import nn

class Pair(nn.Module):
    def __init__(self, shapes, outputs):
        super().__init__()
        self.numbers, self.words = nn.Linear(*shapes["x1"], 5), nn.Embedding(20, 5)
        self.head = nn.Linear(5, outputs)

    def forward(self, x1, x2):
        return self.head(torch.tanh(self.numbers(x1) + self.words(x2).mean(1)))
"""


def test_from_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(OWN)
    np.savez("all.npz", **PAIR, y=LABELS, user=NODE)
    network = "--model own.py:Pair"
    train_it = f"train --data all.npz --features x1,x2 --node user {network} --rounds 2 --out run"
    succeed(train_it)
    np.savez("mine.npz", **{key: array[:8] for key, array in PAIR.items()}, y=LABELS[:8])
    succeed(f"adapt run --data mine.npz {network} --out mine.safetensors")
    succeed(f"predict mine.safetensors --data mine.npz {network} --out said.csv")
    assert len(Path("said.csv").read_text().splitlines()) == 9

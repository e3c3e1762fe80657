"""Raw data stay on their node: what crosses is listed by name and size, and canaries stay unseen.

Everything that crosses between nodes and platform goes through four functions: `broadcast` (down),
`node_step` (its `Contribution` goes up), `fisher_contribution` and `sums_of` (up, once). Here they
are listened to while real runs are trained, node by node, and run folders are searched.

`tests/fleet/test_canaries.py` listens to fleets and task sequences in the same way.

That a sample's values appear nowhere is not that nothing can be learned of it: gradients and sums
of a node with a single sample determine much of it. Against that stands secure aggregation.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import fedmeta
from cli.calling import call
from fedmeta import Adaptation
from fedmeta.algorithms import (
    ADMMFedMeta,
    Centralised,
    FedADMM,
    FedAvg,
    FedDyn,
    FedMeta,
    FedProx,
    LocalOnly,
    PerFedAvg,
    Reptile,
    Scaffold,
)
from fedmeta.algorithms.algorithm import Contribution, NodeState, PlatformState
from fedmeta.algorithms.path_importance import PathKeeping
from fedmeta.core import tree
from fedmeta.core.objective import Facts, Objective
from fedmeta.core.tree import Tree
from fedmeta.data import Federation, NodeData, Scaling
from fedmeta.data.scaling import sums_of
from fedmeta.priors import SquaredEuclidean, importance
from fedmeta.training.run_importance import store_importance
from problems import classification, job_of, regression

# Values that nothing else is likely to have, as one source sample, one target sample, each in a
# support set.
CANARIES = np.array([[271.8281, -314.1592, 161.8033], [141.4213, -173.2050, 223.6067]])
LEARNED = Adaptation(0.05, learned="parameter")
LOOP = fedmeta.Execution(path="loop", threads=1)  # so that payloads are plain tensors
METRICS = {"meta_loss", "local_loss", "primal_squared"}


def planted() -> Federation:
    """The toy classes with a canary in a source's and one in a target's support set."""
    plain = classification()
    inputs = plain.inputs.copy()
    for node, canary in zip((plain.sources[1], plain.targets[0]), CANARIES, strict=True):
        inputs[node.support[0]] = canary
    return replace(plain, inputs=inputs)


@dataclass
class Tap:
    """What crossed."""

    down: list[Tree] = field(default_factory=list)
    up: list[Contribution] = field(default_factory=list)

    def payloads(self) -> Iterator[Tensor]:
        for shared in self.down:
            yield from shared.values()
        for sent in self.up:
            yield from (*sent.update.values(), sent.weight, *sent.metrics.values())


def tapped(algorithm: Any) -> tuple[Any, Tap]:
    """The same algorithm, listened to."""
    tap = Tap()

    class Listening(type(algorithm)):  # type: ignore[misc]
        def broadcast(self, state: PlatformState) -> Tree:
            shared: Tree = super().broadcast(state)
            tap.down.append({name: leaf.clone() for name, leaf in shared.items()})
            return shared

        def node_step(self, *arguments: Any) -> tuple[Contribution, NodeState]:
            sent, state = super().node_step(*arguments)
            tap.up.append(tree.map_leaves(torch.clone, sent))
            return sent, state

    settings = {each.name: getattr(algorithm, each.name) for each in fields(algorithm)}
    return Listening(**settings), tap


def trained(algorithm: Any, folder: Path) -> tuple[fedmeta.Run, Tap, Federation]:
    """Three rounds of a small network."""
    listening, tap = tapped(algorithm)
    federation = planted()
    training = fedmeta.TrainingSettings(rounds=3, checkpoint_every=1, keep_checkpoints=3)
    model = fedmeta.ModelSettings("mlp", hidden=(4,))
    run = fedmeta.train(federation, model, listening, training, execution=LOOP, folder=folder)
    return run, tap, federation


def prior() -> SquaredEuclidean:
    shapes = {"1.weight": (4, 3), "1.bias": (4,), "3.weight": (3, 4), "3.bias": (3,)}
    return SquaredEuclidean(0.5, {name: torch.full(shape, 0.1) for name, shape in shapes.items()})


ALGORITHMS: dict[str, Any] = {
    "automatic penalty": ADMMFedMeta(),
    "fixed penalty": ADMMFedMeta(penalty=1.0, resplit="none"),
    "differences": ADMMFedMeta(penalty=1.0, curvature="finite-difference"),
    "stale": ADMMFedMeta(penalty=1.0, rule="stale"),
    "local steps": ADMMFedMeta(penalty=1.0, local_steps=3, local_step_size=0.1),
    "learned steps": ADMMFedMeta(LEARNED, penalty=1.0),
    "learned steps, automatic": ADMMFedMeta(LEARNED),
    "prior": ADMMFedMeta(penalty=1.0, prior=prior()),
    "prior, automatic": ADMMFedMeta(prior=prior()),
    "drawn duals": ADMMFedMeta(penalty=1.0, dual_deviation=0.01),
    "path importance": PathKeeping(penalty=1.0),
    "fedavg": FedAvg(local_steps=2),
    "fedavg, learned steps": FedAvg(inner=LEARNED),
    "per-fedavg": PerFedAvg(local_steps=2),
    "per-fedavg, learned steps": PerFedAvg(inner=LEARNED),
    "fedmeta": FedMeta(),
    "reptile": Reptile(),
    "fedprox": FedProx(),
    "scaffold": Scaffold(),
    "scaffold, learned steps": Scaffold(inner=LEARNED),
    "feddyn": FedDyn(),
    "fedadmm": FedADMM(),
    "centralised": Centralised(),
    "local-only": LocalOnly(),
}


def allowed(algorithm: Any, theta: Tree) -> dict[str, int]:
    """Names and sizes of what may cross in either direction: the model's own, and named others."""
    sizes = {name: leaf.numel() for name, leaf in theta.items()}
    inner = getattr(algorithm, "inner", None)
    if inner is not None and inner.learned == "parameter":
        moving = inner.moves(theta)
        sizes |= {f"step:{name}": size for name, size in sizes.items() if name in moving}
    if isinstance(algorithm, Scaffold):
        sizes |= {f"control:{name}": leaf.numel() for name, leaf in theta.items()}
    return sizes


def check_crossing(tap: Tap, sizes: dict[str, int]) -> None:
    """Refuse any name that is not on the list, and any size but its own."""
    assert tap.down
    assert tap.up
    for shared in tap.down:
        assert {name: leaf.numel() for name, leaf in shared.items()} == sizes
    for sent in tap.up:
        assert {name: leaf.numel() for name, leaf in sent.update.items()} == sizes
        assert set(sent.metrics) <= METRICS
        assert {leaf.numel() for leaf in (sent.weight, *sent.metrics.values())} == {1}


def patterns(values: np.ndarray[Any, Any]) -> set[bytes]:
    """How a value may stand in a file: as bytes of either precision, or as text."""
    found: set[bytes] = set()
    for value in values.ravel().tolist():
        found |= {np.float32(value).tobytes(), np.float64(value).tobytes()}
        found |= {np.float64(np.float32(value)).tobytes(), f"{abs(value):.6g}".encode()}
    return found


def secrets(scaling: Scaling) -> set[bytes]:
    """The canaries as they are, and as nodes see them."""
    kinds = (torch.float32, torch.float64)
    scaled = [scaling.apply(CANARIES, kind).double().numpy() for kind in kinds]
    return set().union(*(patterns(each) for each in (CANARIES, *scaled)))


def leaks(content: bytes, secret: set[bytes]) -> bool:
    return any(pattern in content for pattern in secret)


def content_of(tensor: Tensor) -> bytes:
    return tensor.detach().contiguous().numpy().tobytes()


@pytest.mark.parametrize("name", ALGORITHMS)
def test_only_the_listed_tensors_cross_and_no_canary_is_in_them(name: str, tmp_path: Path) -> None:
    algorithm = ALGORITHMS[name]
    run, tap, federation = trained(algorithm, tmp_path / "run")
    # Without step sizes the list is the model's own; theirs come on top of it.
    check_crossing(tap, allowed(algorithm, run.meta_model.theta))
    # Three rounds, and a trial before the first.
    assert len(tap.up) == 3 * len(federation.sources) + 1
    secret = secrets(run.meta_model.scaling)
    assert not any(leaks(content_of(payload), secret) for payload in tap.payloads())
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert {"settings.json", "metrics.jsonl", "model.safetensors", "state.safetensors"} <= {
        path.name for path in files
    }
    for path in files:
        assert not leaks(path.read_bytes(), secret), path.name


@dataclass(frozen=True)
class Leaky(FedAvg):
    """Sends a sample of its own beside the update."""

    how: str = "metric"

    def node_step(
        self, objective: Objective, theta: Tree, node: NodeState, data: NodeData, facts: Facts
    ) -> tuple[Contribution, NodeState]:
        sent, node = super().node_step(objective, theta, node, data, facts)
        first = data.support.inputs[0]
        if self.how == "metric":
            return sent._replace(metrics={**sent.metrics, "sample": first}), node
        if self.how == "loss":
            return sent._replace(metrics={**sent.metrics, "local_loss": first[0]}), node
        bias = torch.cat([first, first[:1]])
        return sent._replace(update={**sent.update, "1.bias": bias}), node


@pytest.mark.parametrize("how", ["metric", "loss", "update"])
def test_a_leak_would_be_seen(how: str) -> None:
    algorithm, tap = tapped(Leaky(how=how))
    federation = planted()
    model = fedmeta.ModelSettings("mlp", hidden=(4,))
    job = job_of(federation, model, algorithm, fedmeta.TrainingSettings(), execution=LOOP)
    engine = job.engine()
    shared = algorithm.broadcast(engine.start(job.model.theta)[0])
    moment = torch.ones((), dtype=torch.int64)
    engine.mapping.function(*engine._arguments(shared, {}, moment, torch.tensor([1])))
    if how == "metric":
        with pytest.raises(AssertionError):
            check_crossing(tap, allowed(algorithm, job.model.theta))
    else:
        check_crossing(tap, allowed(algorithm, job.model.theta))
    secret = secrets(job.scaling)
    assert any(leaks(content_of(payload), secret) for payload in tap.payloads())


def test_importance_is_a_sum_of_the_models_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, _, federation = trained(ADMMFedMeta(penalty=1.0), tmp_path / "run")
    sent: list[tuple[Tree, Tensor]] = []
    original: Callable[..., tuple[Tree, Tensor]] = importance.fisher_contribution

    def listened(*arguments: Any) -> tuple[Tree, Tensor]:
        sent.append(original(*arguments))
        return sent[-1]

    monkeypatch.setattr(importance, "fisher_contribution", listened)
    store_importance(tmp_path / "run", "fisher", run.meta_model, federation)
    sizes = {name: leaf.numel() for name, leaf in run.meta_model.theta.items()}
    secret = secrets(run.meta_model.scaling)
    assert len(sent) == len(federation.sources)
    for squares, count in sent:
        assert {name: leaf.numel() for name, leaf in squares.items()} == sizes
        assert count.numel() == 1
        assert not any(leaks(content_of(leaf), secret) for leaf in (*squares.values(), count))
    stored = importance.importance_file(tmp_path / "run", "fisher").read_bytes()
    assert not leaks(stored, secret)


def test_scaling_is_three_sums() -> None:
    federation, secret = planted(), patterns(CANARIES)
    features = federation.inputs[0].size
    for node in federation.sources:
        rows = np.concatenate([node.support, node.query])
        assert len(rows) > 1  # the sum of one sample is that sample
        sums = sums_of(federation.inputs, rows, "per-feature")
        assert {each.name for each in fields(sums)} == {"count", "total", "squares"}
        assert (np.size(sums.count), sums.total.size, sums.squares.size) == (1, features, features)
        assert not leaks(sums.total.tobytes() + sums.squares.tobytes(), secret)


def test_values_to_be_predicted_stay_as_well(tmp_path: Path) -> None:
    plain = regression()
    labels = plain.labels.copy()
    labels[plain.sources[1].support[0]], labels[plain.targets[0].query[0]] = CANARIES[:, 0]
    federation = replace(plain, labels=labels)
    algorithm, tap = tapped(ADMMFedMeta(penalty=500.0))
    fedmeta.train(
        federation,
        fedmeta.ModelSettings("linear"),
        algorithm,
        fedmeta.TrainingSettings(rounds=2),
        execution=LOOP,
        folder=tmp_path / "run",
    )
    secret = patterns(CANARIES[:, :1])
    assert not any(leaks(content_of(payload), secret) for payload in tap.payloads())
    for path in (tmp_path / "run").rglob("*"):
        assert path.is_dir() or not leaks(path.read_bytes(), secret), path


def test_no_canary_in_what_commands_write_print_or_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.chdir(tmp_path)
    federation = planted()
    rows = {row: n.name for n in federation.nodes for row in (*n.support, *n.query)}
    lines = [
        ",".join([*map(str, federation.inputs[row].tolist()), str(federation.labels[row]), name])
        for row, name in sorted(rows.items())
    ]
    Path("data.csv").write_text("\n".join(["a,b,c,label,device", *lines]) + "\n")
    commands = [
        "train --data data.csv --node device --model linear --penalty 5 --rounds 3 --out run",
        "evaluate run --per-node --out run/evaluated.json",
        "diagnose run",
        "report run",
        "data --data data.csv --node device",
        "adapt run --data data.csv --label label --out run/adapted.safetensors",
        "compare admm-fedmeta fedavg --data data.csv --node device --model linear --rounds 2 "
        "--seeds 2 --out both",
    ]
    said = ""
    for line in commands:
        outcome = call(line)
        assert outcome.code == 0, outcome.err
        said += outcome.out + outcome.err
    scaling = fedmeta.MetaModel.load("run").scaling
    secret = secrets(scaling)
    assert leaks(Path("data.csv").read_bytes(), secret)  # they are there to be found
    for folder in ("run", "both"):
        for path in Path(folder).rglob("*"):
            assert path.is_dir() or not leaks(path.read_bytes(), secret), path
    assert not leaks((said + caplog.text).encode(), secret)

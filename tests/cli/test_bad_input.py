"""Bad input: one line that says what is wrong and what to do, exit code 2, and nothing lost."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from cli.calling import SHELLS, call, snapshot, spawn
from fedmeta.core import storage

TRAIN = "train --data data.csv --node device --model linear --rounds 2 --out new "
DIGITS = "train --data digits --model linear --rounds 2 --out new "
RESUME = "train --rounds 5 --resume run "

Prepare = Callable[[Path], None]


@dataclass(frozen=True)
class Bad:
    """A command line that must be refused.

    Args:
        name: of the case.
        line: the arguments.
        words: what the complaint must say, of the problem and of the remedy.
        files: text files that must be there first.
        prepare: what else must be done first.
        code: the exit code.
        leaves: what may be there afterwards that was not before, by how its path begins.
    """

    name: str
    line: str | Sequence[str]
    words: tuple[str, ...]
    files: dict[str, str] = field(default_factory=dict)
    prepare: Prepare | None = None
    code: int = 2
    leaves: tuple[str, ...] = ()


def bad(name: str, line: str | Sequence[str], *words: str, **more: Any) -> Bad:
    return Bad(name, line, words, **more)


def from_file(name: str, text: str, *words: str, more: str = "") -> Bad:
    """A .csv file that cannot be read."""
    return bad(name, f"train --data bad.csv --out new {more}", *words, files={"bad.csv": text})


def from_toml(name: str, text: str, *words: str, line: str = "train --out new") -> Bad:
    """A settings file that cannot be used."""
    return bad(name, f"{line} --config bad.toml", *words, files={"bad.toml": text})


def put(path: str, content: bytes) -> Prepare:
    def prepare(folder: Path) -> None:
        (folder / path).write_bytes(content)

    return prepare


def halve(path: str) -> Prepare:
    def prepare(folder: Path) -> None:
        content = (folder / path).read_bytes()
        (folder / path).write_bytes(content[: len(content) // 2])

    return prepare


def remove(*paths: str) -> Prepare:
    def prepare(folder: Path) -> None:
        for path in paths:
            (folder / path).unlink()

    return prepare


def edit(path: str, change: Callable[[Any], Any]) -> Prepare:
    """Change a JSON file: in place, or to what is returned."""

    def prepare(folder: Path) -> None:
        value = json.loads((folder / path).read_text())
        changed = change(value)
        (folder / path).write_text(json.dumps(value if changed is None else changed))

    return prepare


def arrays(**values: Any) -> Prepare:
    def prepare(folder: Path) -> None:
        np.savez(folder / "bad.npz", **values)

    return prepare


def model_file(change: Callable[[dict[str, torch.Tensor], dict[str, Any]], None]) -> Prepare:
    """Change tensors or facts of the run's model file."""

    def prepare(folder: Path) -> None:
        file = folder / "run/model.safetensors"
        with safetensors.safe_open(file, framework="pt") as opened:
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
            facts = json.loads(opened.metadata()["fedmeta"])
        change(tensors, facts)
        safetensors.torch.save_file(tensors, file, {"fedmeta": json.dumps(facts)})

    return prepare


def other_checkpoints(folder: Path) -> None:
    shutil.rmtree(folder / "run/checkpoints")
    shutil.copytree(folder / "other/checkpoints", folder / "run/checkpoints")


def checkpoint_of_nonsense(folder: Path) -> None:
    place = folder / "run/checkpoints/round-000003"
    (place / "state.safetensors").write_bytes(b"nonsense")
    digest = hashlib.sha256(b"nonsense").hexdigest()
    edit("run/checkpoints/round-000003/state.json", lambda facts: facts.update(sha256=digest))(
        folder
    )


def other_sample(folder: Path) -> None:
    lines = (folder / "data.csv").read_text().splitlines()
    lines[1] = "7.5," + lines[1].split(",", 1)[1]
    (folder / "data.csv").write_text("\n".join(lines) + "\n")


def plain_state_dict(folder: Path) -> None:
    safetensors.torch.save_file({"a": torch.zeros(3)}, folder / "plain.safetensors")


def partial_comparison(folder: Path) -> None:
    (folder / "half/runs/fedavg-seed0").mkdir(parents=True)


def nan_parameter(tensors: dict[str, torch.Tensor], facts: dict[str, Any]) -> None:
    tensors["theta/1.weight"][0, 0] = torch.nan


def partial_search(folder: Path) -> None:
    (folder / "half/trials").mkdir(parents=True)


def without_training(settings: dict[str, Any]) -> None:
    del settings["settings"]["training"]


def data_of_its_own(settings: dict[str, Any]) -> None:
    settings["settings"]["data"] = {"name": "own data"}


def copy(source: str, target: str) -> Prepare:
    def prepare(folder: Path) -> None:
        shutil.copy(folder / source, folder / target)

    return prepare


def pipe(folder: Path) -> None:
    os.mkfifo(folder / "pipe")


OTHER_SEED = {"a.toml": "[training]\nseed = 4\n"}
GRID = "tune --data data.csv --node device --model linear --rounds 2 --seeds 1 "
COMPARE = "compare --data data.csv --node device --model linear --rounds 2 --seeds 1 "
CHECKPOINT = "run/checkpoints/round-000003"

FILES = [
    bad("missing file", "train --data no.csv --out new", "no file or folder no.csv", "check"),
    bad("unknown kind", TRAIN + "--data own.py", "own.py is of a kind", "give .npz, .csv"),
    bad("unknown data set", DIGITS + "--data digitz", "'digitz'", "did you mean 'digits'", "path"),
    bad("empty name", "train --out new --data ''", "name is ''", "text that is not empty"),
    bad(
        "corrupt npz",
        "train --data bad.npz --out new",
        "not an .npz file",
        "save numbers and texts",
        prepare=put("bad.npz", b"PK\x03\x04garbage"),
    ),
    bad(
        "npz of objects",
        "train --data bad.npz --out new",
        "not an .npz file of plain arrays",
        "not objects",
        prepare=arrays(x=np.array([{}], dtype=object), y=np.zeros(1)),
    ),
    bad(
        "npz without x",
        "train --data bad.npz --out new",
        "no array 'x'",
        "known: inputs, y",
        prepare=arrays(inputs=np.zeros((4, 2)), y=np.zeros(4)),
    ),
    bad(
        "npz with fewer labels",
        "train --data bad.npz --out new",
        "4 inputs but 3 labels",
        "one per sample",
        prepare=arrays(x=np.zeros((4, 2)), y=np.zeros(3)),
    ),
    bad(
        "npz with NaN",
        "train --data bad.npz --out new --nodes 2 --set data.samples=[4,4]",
        "NaN or infinite features",
        "clean or drop",
        prepare=arrays(x=np.full((40, 2), np.nan), y=np.arange(40) % 2),
    ),
    bad(
        "corrupt parquet",
        "train --data bad.parquet --out new",
        "bad.parquet is not a parquet file",
        "save it again",
        prepare=put("bad.parquet", b"PAR1 nope PAR1"),
    ),
    bad(
        "binary csv",
        "train --data bad.csv --out new",
        "not a CSV text in UTF-8",
        "save it as such",
        prepare=put("bad.csv", b"\xff\xd8\xff\xe0a,b\n"),
    ),
    from_file("empty csv", "", "bad.csv is empty", "give a header and rows"),
    from_file("header only", "a,b,label\n", "a header but no rows", "add rows"),
    from_file(
        "text feature", "a,label\n1,x\nfoo,y\n", "not a number ('foo') (line 3)", "--drop 'a'"
    ),
    from_file(
        "missing value", "a,label\n1,x\n,y\n", "missing in 1 row ('a' 1) (line 3)", "--missing"
    ),
    from_file("NaN", "a,label\n1,x\nnan,y\n", "1 value missing", "(line 3)", "--missing mean"),
    from_file("infinity", "a,label\n1,x\ninf,y\n", "1 value infinite", "(line 3)", "mend them"),
    from_file("float labels", "a,label\n1,0.5\n2,1.5\n", "0.5", "not a class", "--task regression"),
    from_file("ragged rows", "a,label\n1,x\n2,y,3\n", "(line 3 has 3)", "one value per column"),
    from_file("two equal columns", "a,a,label\n1,2,x\n", "several columns ('a')", "its own name"),
    from_file(
        "one class",
        "a,label,device\n" + "".join(f"{i},x,d{i // 4}\n" for i in range(16)),
        "one class",
        "at least two classes",
        more="--node device",
    ),
    from_file(
        "one sample per node",
        "a,label,device\n" + "".join(f"{i},{'xy'[i % 2]},d{i}\n" for i in range(8)),
        "none of the 8 nodes",
        "give more data",
        more="--node device",
    ),
    bad("label column", TRAIN + "--label lable", "no column 'lable'", "did you mean 'label'"),
    bad("node column", TRAIN + "--node devise", "no column 'devise'", "did you mean 'device'"),
    bad(
        "text as values",
        TRAIN + "--task regression",
        "not a number ('a', 'b'",
        "(line 2",
        "give numbers",
    ),
    bad(
        "built-in data set that is not there",
        "train --data cifar10 --folder . --out new",
        "cifar10",
        "not found",
        "$FEDMETA_DATA",
    ),
]

PARTITIONS = [
    bad("empty sets", DIGITS + "--set data.min_samples=1", "min_samples is 1", "at least 2"),
    bad("more than there is", DIGITS + "--nodes 5000", "5000 nodes ask for", "1797", "fewer nodes"),
    bad(
        "too many classes", DIGITS + "--classes-per-node 11", "is 11", "10 classes", "ask for fewer"
    ),
    bad(
        "range reversed", DIGITS + "--set data.samples=[40,20]", "(40, 20)", "smallest and largest"
    ),
    bad("only targets", DIGITS + "--set data.target_share=1", "target_share is 1.0", "below 1"),
    bad("no nodes", DIGITS + "--nodes 0", "nodes is 0", "at least 1"),
    bad("unknown partition", DIGITS + "--partition dirichle", "'dirichle'", "mean 'dirichlet'"),
    bad("unknown task", DIGITS + "--task clasification", "mean 'classification'"),
    bad("label of a built-in", DIGITS + "--label x", "label is 'x'", "leave label out"),
    bad(
        "unknown target",
        [*TRAIN.split(), "--set", 'data.targets=["devise-1"]'],
        "no node 'devise-1'",
        "did you mean 'device-1'",
    ),
    bad("target that is no list", TRAIN + "--set data.targets=x", "targets is 'x'", "give a list"),
]

SETTINGS = [
    bad("no settings file", TRAIN + "-c no.toml", "no settings file no.toml", "check the path"),
    bad("a table as settings", TRAIN + "-c data.csv", "data.csv is not valid TOML", "mend it"),
    bad("a folder as settings", TRAIN + "-c run", "settings file run cannot be read", "check it"),
    from_toml("invalid TOML", "rounds = = 3", "not valid TOML", "line 1", "mend it"),
    from_toml("unknown key", "algoritm = 'fedavg'", "'algoritm'", "did you mean 'algorithm'"),
    from_toml("unknown table", "[trainning]\nrounds = 1", "'trainning'", "mean 'training'"),
    from_toml("unknown key in a table", "[training]\nruonds = 1", "'ruonds'", "mean 'rounds'"),
    from_toml("text as number", "[training]\nrounds = 'x'", "rounds is 'x'", "give a whole number"),
    from_toml("truth as number", "[training]\nrounds = true", "is True", "give a whole number"),
    from_toml("fraction as count", "[data]\nnodes = 3.5", "data.nodes is 3.5", "a whole number"),
    from_toml("number as table", "training = 3", "training is 3", "make it a table [training]"),
    from_toml(
        "number as algorithm",
        "[algorithms]\nadmm-fedmeta = 3",
        "algorithms.admm-fedmeta is 3",
        "make it a table",
    ),
    from_toml("table of no algorithm", "[algorithms.fedvag]\nx = 1", "'fedvag'", "mean 'fedavg'"),
    from_toml("text in a list", "[data]\nsamples = [1, 'b']", "samples[1] is 'b'", "whole number"),
    from_toml(
        "number as schedule",
        "[algorithms.admm-fedmeta]\ndifference = 3",
        "difference is 3",
        "give a table",
    ),
    from_toml("number as loss", "loss = 3", "loss is 3", "give its name"),
    from_toml("number as init", "init = 3", "init is 3", "path of a run or model file"),
    from_toml("unknown preset in a file", "preset = 3", "preset 3 is unknown", "authors, paper"),
    bad("unknown command", "trian", "'trian'", "--help"),
    bad("unknown flag", TRAIN + "--ruonds 3", "--ruonds", "see --help"),
    bad("abbreviated flag", TRAIN + "--round 3", "--round", "see --help"),
    bad("flag without value", TRAIN + "--rounds", "--rounds", "argument", "see --help"),
    bad(
        "flag of another type", TRAIN + "--inner-steps abc", "--inner-steps", "'abc'", "see --help"
    ),
    bad("penalty that is no number", TRAIN + "--penalty abc", "penalty is 'abc'", 'or "auto"'),
    bad("fraction for a count", TRAIN + "--local-steps 1.5", "1.5", "see --help"),
    bad("stray argument", TRAIN + "stray", "stray", "see --help"),
    bad("missing argument", "adapt", "RUN", "see --help"),
    bad("no assignment", TRAIN + "--set foo", "'foo' is not an assignment", "write KEY=VALUE"),
    bad("unknown key by --set", TRAIN + "--set training.rouds=3", "'rouds'", "mean 'rounds'"),
    bad(
        "value and table at once",
        TRAIN + "--set training.rounds=3 --set training.rounds.x=3",
        "'training.rounds.x' has a value already",
        "one of the two",
    ),
    bad("unknown preset", TRAIN + "--preset papr", "'papr' is unknown", "did you mean 'paper'"),
    bad("unknown algorithm", TRAIN + "-a fedvag", "'fedvag' is unknown", "did you mean 'fedavg'"),
    bad("unknown model", TRAIN + "--model mpl", "'mpl' is unknown", "mean 'mlp'", "file.py"),
    bad("unknown loss", TRAIN + "--loss cross-entrpy", "unknown", "did you mean 'cross-entropy'"),
    bad("loss of another task", TRAIN + "--loss squared-error", "does not fit", 'use loss "auto"'),
    bad("unknown curvature", TRAIN + "--curvature exakt", "'exakt'", "did you mean 'exact'"),
    bad("unknown dtype", TRAIN + "--dtype float16", "'float16'", "did you mean 'float64'"),
    bad("unknown device", TRAIN + "--device gpu", "device is 'gpu'", "did you mean 'cpu'"),
    bad("device without number", TRAIN + "--device cpu:x", "'cpu:x'", "give cpu, cuda or cuda:"),
    bad("unknown path", TRAIN + "--path bached", "'bached'", "did you mean 'batched'"),
    bad("too little memory", TRAIN + "--memory 1e-7", "does not fit one node", "give --memory"),
    bad("no memory", TRAIN + "--memory 0", "memory is 0.0", "greater than 0"),
    bad("too many threads", TRAIN + "--threads 100000", "threads is 100000", "at most 1024"),
    bad("negative ρ", TRAIN + "--penalty -1", "penalty ρ is -1.0", "greater than 0"),
    bad("ρ = 0", TRAIN + "--penalty 0", "penalty ρ is 0.0", "greater than 0"),
    bad("ρ = NaN", TRAIN + "--penalty nan", "penalty ρ is nan", "greater than 0"),
    bad("negative α", TRAIN + "--inner-step-size -0.1", "step_size is -0.1", "greater than 0"),
    bad("α = infinity", TRAIN + "--inner-step-size inf", "step_size is inf", "greater than 0"),
    bad("no local steps", TRAIN + "--local-steps 0", "local_steps is 0", "whole number"),
    bad("negative rounds", TRAIN + "--rounds -1", "rounds is -1", "at least 0"),
    bad("negative seed", TRAIN + "--seed -1", "seed is -1", "whole number from 0"),
    bad("huge seed", TRAIN + "--seed 99999999999999999999", "seed is 9999", "2⁶³"),
    bad("nobody takes part", TRAIN + "--fraction 0", "fraction is 0.0", "above 0"),
    bad("all is lost", TRAIN + "--lost 1", "lost is 1.0", "below 1"),
    bad("ρ for FedAvg", TRAIN + "-a fedavg --penalty 1", "no setting 'penalty'", "local_steps"),
    bad(
        "ρ of some nodes",
        TRAIN + "--set algorithms.admm-fedmeta.penalty.device-0=1",
        "names no ρ for node",
        "give one number for all nodes",
    ),
    bad("adapting nothing", [*TRAIN.split(), "--set", 'inner.scope=["x.*"]'], "scope", "1.weight"),
    bad("cnn for a table", TRAIN + "--model cnn", "a cnn needs images", 'use model "mlp"'),
]

PRIORS = [
    bad("λ without prior", TRAIN + "--prior-strength 1", "no prior model", "--prior RUN_OR_FILE"),
    bad("prior for FedAvg", TRAIN + "-a fedavg --prior run", "takes no prior", "admm-fedmeta"),
    bad(
        "prior of another model",
        TRAIN + "--prior other --prior-strength 1",
        "tensor '1.weight'",
        "prior of the same model",
    ),
    bad(
        "prior of other tensors",
        TRAIN + "--prior plain.safetensors --prior-strength 1",
        "no tensor '1.weight'",
        "prior of the same model",
        prepare=plain_state_dict,
    ),
    bad("no prior file", TRAIN + "--prior no --prior-strength 1", "no no (param", "check the path"),
    bad(
        "prior that is no model",
        TRAIN + "--prior data.csv --prior-strength 1",
        "not a safetensors file",
        "restore it",
    ),
    bad(
        "prior of an unfinished run",
        TRAIN + "--prior run --prior-strength 1",
        "has no model.safetensors",
        "--resume",
        prepare=remove("run/model.safetensors"),
    ),
    bad("negative λ", TRAIN + "--prior run --prior-strength -1", "is -1.0", "at least 0"),
    bad("λ = NaN", TRAIN + "--prior run --prior-strength nan", "strength is nan", "at least 0"),
]

INITS = [
    bad("no initial model", TRAIN + "--init no", "there is no no", "check the path"),
    bad("unnamed initial model", TRAIN + "--init ''", "init is ''", "path of a run or model file"),
    bad(
        "initial model of other shapes",
        TRAIN + "--init other",
        "initial model is of another model: tensor '1.weight'",
        "same model",
    ),
    bad(
        "initial model of other tensors",
        TRAIN + "--init plain.safetensors",
        "tensor '1.weight' is absent",
        "same model",
        prepare=plain_state_dict,
    ),
    bad("table as initial model", TRAIN + "--init data.csv", "not a safetensors", "restore it"),
    bad(
        "initial model of an unfinished run",
        TRAIN + "--init run",
        "has no model.safetensors",
        "--resume",
        prepare=remove("run/model.safetensors"),
    ),
]

OWN = [
    bad("no model file", TRAIN + "--model no.py:f", "no.py does not exist", "check the path"),
    bad("no such model", TRAIN + "--model own.py:no", "has no 'no'", "name the model it defines"),
    bad(
        "model file that raises",
        TRAIN + "--model bad.py:f",
        "ZeroDivisionError",
        "mend that file",
        files={"bad.py": "1 / 0\n"},
    ),
    bad(
        "model file that is no Python",
        TRAIN + "--model bad.py:f",
        "SyntaxError",
        "mend that file",
        files={"bad.py": "def f(:\n"},
    ),
    bad("model that raises", TRAIN + "--model own.py:raises", "KeyError", "mend that function"),
    bad("model of nothing", TRAIN + "--model own.py:no_arguments", "TypeError", "(input shape, "),
    bad("model that is none", TRAIN + "--model own.py:thing", "is a int", "name a function"),
    bad("model that makes none", TRAIN + "--model own.py:number", "a int", "return an nn.Module"),
    bad("batch norm", TRAIN + "--model own.py:batch_norm", "BatchNorm1d", "use nn.GroupNorm"),
    bad("wrong outputs", TRAIN + "--model own.py:narrow", "returns (4, 2)", "needs 3 outputs"),
    bad("wrong inputs", TRAIN + "--model own.py:other_inputs", "fails on samples", "this shape"),
    bad("no such algorithm", TRAIN + "-a own.py:No", "no 'No'", "name the algorithm it defines"),
    bad("no algorithm", TRAIN + "-a own.py:NotAnAlgorithm", "not an algorithm", "subclasses"),
    bad("algorithm that is a number", TRAIN + "-a own.py:thing", "not an algorithm", "subclasses"),
    bad("loss that is a number", TRAIN + "--loss own.py:thing", "is a int", "name a function"),
    bad("loss that raises", TRAIN + "--loss own.py:broken_loss", "ValueError: oops", "fits the"),
    bad("loss of one number", TRAIN + "--loss own.py:mean_loss", "shape ()", "one number per"),
    bad(
        "loss for other labels",
        TRAIN + "--loss fedmeta.models.losses:squared_error",
        "labels of shape",
        "fits the task",
    ),
]

RESUMING = [
    bad("resume nothing", "train --resume no", "no run folder no", "check the path"),
    bad("resume a file", "train --resume data.csv", "no run folder data.csv", "check the path"),
    bad("resume no run", "train --resume .", "holds no run", "name the folder that --out made"),
    bad("resume from elsewhere", RESUME + "--init run", "other weights", "it was started with"),
    bad("resume and out", RESUME + "--out new", "--out and --resume", "stays where it is"),
    bad("resume with another ρ", RESUME + "--penalty 9", "penalty was 'auto'", "only rounds"),
    bad("resume with another α", RESUME + "--inner-step-size 9", "step_size was", "only rounds"),
    bad("resume with another model", RESUME + "--model mlp", "was 'linear'", "only rounds"),
    bad("resume in another dtype", RESUME + "--dtype float64", "was 'float32'", "only rounds"),
    bad("resume with another seed", RESUME + "--seed 4", "data of run run have changed", "resume"),
    bad("resume for fewer rounds", "train --resume run -r 2", "done 3 rounds", "larger --rounds"),
    bad(
        "resume with changed data",
        RESUME,
        "data of run run have changed",
        "resume with the data",
        prepare=other_sample,
    ),
    bad(
        "resume another format",
        RESUME,
        "has format 9",
        "use the version",
        prepare=edit("run/settings.json", lambda settings: settings.update(format=9)),
    ),
    bad(
        "resume damaged settings",
        RESUME,
        "settings.json",
        "is damaged",
        "restore the file",
        prepare=halve("run/settings.json"),
    ),
    bad(
        "resume incomplete settings",
        RESUME,
        "settings.json is damaged",
        "restore the file",
        prepare=edit("run/settings.json", without_training),
    ),
    bad(
        "resume a run from Python",
        RESUME,
        "started from Python",
        "open it from Python",
        prepare=edit("run/settings.json", lambda settings: settings.update(origin={})),
    ),
    bad(
        "resume settings without tables",
        RESUME,
        "settings.json is damaged",
        "restore the file",
        prepare=edit("run/settings.json", lambda settings: settings.update(origin={"table": 3})),
    ),
    bad(
        "truncated checkpoint",
        RESUME,
        "round-000003 is truncated or damaged",
        "resume from round 2",
        prepare=halve(f"{CHECKPOINT}/state.safetensors"),
    ),
    bad(
        "checkpoint without tensors",
        RESUME,
        "round-000003 cannot be read",
        "resume from round 2",
        prepare=remove(f"{CHECKPOINT}/state.safetensors"),
    ),
    bad(
        "damaged checkpoint facts",
        RESUME,
        "state.json (checkpoint) is damaged",
        "resume from round 2",
        prepare=halve(f"{CHECKPOINT}/state.json"),
    ),
    bad(
        "checkpoint without facts",
        RESUME,
        "there is no",
        "state.json",
        "resume from round 2",
        prepare=remove(f"{CHECKPOINT}/state.json"),
    ),
    bad(
        "checkpoint without round",
        RESUME,
        "is not complete",
        "resume from round 2",
        prepare=edit(f"{CHECKPOINT}/state.json", lambda facts: {**facts, "round": None}),
    ),
    bad(
        "checkpoint of nonsense",
        RESUME,
        "is not complete",
        "resume from round 2",
        prepare=checkpoint_of_nonsense,
    ),
    bad(
        "checkpoint of another format",
        RESUME,
        "has format 7",
        "version of fedmeta that wrote it",
        prepare=edit(f"{CHECKPOINT}/state.json", lambda facts: facts.update(format=7)),
    ),
    bad(
        "checkpoint of another model",
        RESUME,
        "is of another model",
        "settings the run was started with",
        prepare=other_checkpoints,
    ),
    bad(
        "damaged metrics",
        RESUME,
        "line 1 of run/metrics.jsonl is damaged",
        "restore or delete it",
        prepare=put("run/metrics.jsonl", b"{bad\n"),
    ),
    bad(
        "metrics without rounds",
        RESUME,
        "metrics.jsonl is damaged",
        "restore or delete it",
        prepare=put("run/metrics.jsonl", b"{}\n[]\n"),
    ),
    bad("out that holds a run", TRAIN + "--out run", "holds a run already", "--resume", "--out"),
    bad("out below a file", TRAIN + "--out own.py/x", "cannot write own.py/x", "--out"),
    bad("out that is a file", TRAIN + "--out own.py", "cannot write own.py", "--out"),
    bad("out in a read-only place", TRAIN + "--out /sys/fedmeta", "cannot write /sys/", "--out"),
    bad("out where no folder can be", TRAIN + "--out /proc/fedmeta", "cannot write /pr", "--out"),
]

AFTERWARDS = [
    bad("evaluate nothing", "evaluate no", "no run folder no", "check the path"),
    bad("adapt nothing", "adapt no --target device-0", "there is no no", "check the path"),
    bad("report on nothing", "report no", "no run folder no", "check the path"),
    bad("report on no run", "report .", "holds no run", "name the folder"),
    bad(
        "evaluate an unfinished run",
        "evaluate run",
        "not finished",
        "continue it with train --resume",
        prepare=remove("run/model.safetensors", "run/summary.json"),
    ),
    bad(
        "adapt an unfinished run",
        "adapt run --target device-0",
        "not finished",
        "continue it with train --resume",
        prepare=remove("run/model.safetensors", "run/summary.json"),
    ),
    bad(
        "truncated model",
        "evaluate run",
        "model.safetensors (meta-model) is damaged",
        "restore it",
        prepare=halve("run/model.safetensors"),
    ),
    bad(
        "not a safetensors file",
        "adapt run --data mine.csv",
        "not a safetensors file",
        "restore it",
        prepare=put("run/model.safetensors", b"no"),
    ),
    bad(
        "other tensors",
        "adapt plain.safetensors --data mine.csv",
        "not a meta-model of fedmeta",
        "use the model.safetensors of a run",
        prepare=plain_state_dict,
    ),
    bad(
        "model with NaN",
        "evaluate run",
        "has NaN or infinite parameters",
        "restore it",
        prepare=model_file(nan_parameter),
    ),
    bad(
        "model of another format",
        "evaluate run",
        "has format 9",
        "version of fedmeta that wrote it",
        prepare=model_file(lambda _, facts: facts.update(format=9)),
    ),
    bad(
        "incomplete model",
        "evaluate run",
        "not a complete meta-model",
        "use a model.safetensors that fedmeta wrote",
        prepare=model_file(lambda _, facts: facts.update(task=3)),
    ),
    bad(
        "model that names code",
        "adapt run --data mine.csv",
        "network of your own (evil.py:make)",
        "--model",
        files={"evil.py": "raise SystemExit('it was imported')\n"},
        prepare=model_file(lambda _, facts: facts["network"].update(name="evil.py:make")),
    ),
    bad(
        "model that names a loss",
        "evaluate run",
        "loss of your own (evil.py:loss)",
        "--loss",
        files={"evil.py": "raise SystemExit('it was imported')\n"},
        prepare=model_file(lambda _, facts: facts.update(loss="evil.py:loss")),
    ),
    bad("another network", "adapt run -d mine.csv --model own.py:wide", "'weight'", "same model"),
    bad("another built-in", "evaluate run --model mlp", "'1.weight'", "same model"),
    bad("broken loss again", "evaluate run --loss own.py:broken_loss", "oops", "fits the task"),
    bad("mean loss again", "adapt run -d mine.csv --loss own.py:mean_loss", "()", "one number per"),
    bad("loss of other tasks", "evaluate run --loss squared-error", "does not fit", '"auto"'),
    bad(
        "resume of a run that names code",
        RESUME,
        "code of your own (evil.py:Evil)",
        "name it again: --algorithm evil.py:Evil",
        files={"evil.py": "raise SystemExit('it was imported')\n"},
        prepare=edit(
            "run/settings.json",
            lambda settings: settings["origin"]["table"].update(algorithm="evil.py:Evil"),
        ),
    ),
    bad(
        "other classes",
        "evaluate run --data bad.csv",
        "other classes or shapes",
        "data like its own",
        files={
            "bad.csv": "width,height,label,device\n"
            + "".join(f"{i},{i},{'ax'[i % 2]},d{i // 4}\n" for i in range(24))
        },
    ),
    bad(
        "other features",
        "evaluate run --data bad.csv",
        "height",
        files={
            "bad.csv": "width,label,device\n"
            + "".join(f"{i},{'abc'[i % 3]},d{i // 6}\n" for i in range(24))
        },
    ),
    bad("steps that are no numbers", "evaluate run --steps a,b", "'a,b'", "e.g. 0,1,5"),
    bad("negative steps", "evaluate run --steps -1", "'-1'", "at least 0"),
    bad("evaluate with α = 0", "evaluate run --inner-step-size 0", "is 0.0", "greater than 0"),
    bad(
        "evaluate with a huge α",
        "evaluate run --inner-step-size 1e300 --steps 9 --out new.json",
        "9 adaptation steps",
        "no longer finite",
        "lower the inner step size",
        code=3,
    ),
    bad(
        "no targets",
        "evaluate run --data more.csv --set data.target_share=0",
        "no target nodes",
        "target_share",
        prepare=copy("data.csv", "more.csv"),
    ),
    bad("own data anew", "evaluate run --data ./data.csv", "trained on", "or name other data"),
    bad("own nodes anew", "evaluate run --seed 4", "of data.csv anew", "leave out --data, --seed"),
    bad("own splits anew", "evaluate run --set data.support_share=0.2", "anew", "leave out"),
    bad("other nodes by file", "evaluate run -c a.toml", "anew", "leave out", files=OTHER_SEED),
    bad(
        "evaluate with changed data",
        "evaluate run",
        "data of run run have changed, or it was started from Python",
        "put them back",
        prepare=other_sample,
    ),
    bad(
        "adapt with changed data",
        "adapt run --target device-0",
        "data of run run have changed, or it was started from Python",
        "put them back",
        prepare=other_sample,
    ),
    bad(
        "evaluate without its data",
        "evaluate run",
        "(there is no file or folder data.csv)",
        "put them back",
        prepare=remove("data.csv"),
    ),
    bad(
        "evaluate data of Python's own",
        "evaluate run",
        "(there is no data set 'own data')",
        "open the run from Python",
        prepare=edit("run/settings.json", data_of_its_own),
    ),
    bad(
        "evaluate incomplete settings",
        "evaluate run",
        "settings.json is damaged",
        "restore the file",
        prepare=edit("run/settings.json", without_training),
    ),
    bad("out is a folder", "evaluate run --out other", "Is a directory", "--out"),
    bad("out below a file again", "data -d digits -o own.py/x", "cannot write own.py/x", "--out"),
    bad("out is a pipe", "data -d digits -o pipe", "pipe is a device", "ordinary", prepare=pipe),
    bad("adapt to nothing", "adapt run", "samples are needed", "--data FILE or --target NODE"),
    bad(
        "adapt to two",
        "adapt run --data mine.csv --target device-0",
        "samples are needed",
        "either --data FILE or --target",
    ),
    bad("unknown node", "adapt run --target devise", "no node 'devise'", "use one of: device-"),
    bad("unnamed node", "adapt run --target ''", "no node ''", "use one of: device-"),
    bad(
        "unknown class",
        "adapt run --data bad.csv",
        "class 'z'",
        "its classes are a, b, c",
        files={"bad.csv": "width,height,label\n1,2,z\n3,4,a\n"},
    ),
    bad(
        "one sample",
        "adapt run --data bad.csv",
        "has 1 sample",
        "--support-share 1",
        files={"bad.csv": "width,height,label\n1,2,a\n"},
    ),
    bad(
        "other feature count",
        "adapt run --data bad.csv",
        "height",
        files={"bad.csv": "width,label\n1,a\n2,b\n"},
    ),
    bad("negative adaptation", "adapt run --data mine.csv --steps -1", "steps is -1", "at least 0"),
    bad("no support", "adapt run -d mine.csv --support-share 0", "share is 0.0", "above 0"),
]

SEVERAL = [
    bad("twice the same", COMPARE + "fedavg fedavg", "['fedavg', 'fedavg']", "each one once"),
    bad("no seeds", COMPARE + "fedavg --seeds 0", "seeds is 0", "at least 1"),
    bad("unknown equality", COMPARE + "fedavg --equal gradient", "'gradient'", "mean 'gradients'"),
    bad("compare unknown", COMPARE + "fedvag", "'fedvag' is unknown", "did you mean 'fedavg'"),
    bad("colon alone", COMPARE + "fedavg:5", "no setting after its colon", "NAME:KEY=VALUE"),
    bad("unknown own setting", COMPARE + "fedavg:local_step=5", "'local_step'", "'local_steps'"),
    bad(
        "a prior for nobody",
        COMPARE + "fedavg reptile --out new --set prior.model=run --set prior.strength=1",
        "none of the algorithms takes one",
        "compare admm-fedmeta too",
    ),
    bad("nobody to compare on", COMPARE + "--set data.target_share=0", "no target", "target_share"),
    bad("compare into a run", COMPARE + "fedavg --out run", "run holds runs", "another --out"),
    bad(
        "compare into half a comparison",
        COMPARE + "fedavg --out half",
        "half holds runs already",
        "delete that folder",
        prepare=partial_comparison,
    ),
    bad(
        "tune into a search",
        GRID + "--grid penalty=1 --out half",
        "half holds runs already",
        "choose another --out",
        prepare=partial_search,
    ),
    bad("nothing to tune", GRID, "nothing to tune", "--grid or --range"),
    bad("range without trials", GRID + "--range penalty=0.1..1", "is a range", "--trials"),
    bad("no range", GRID + "--range penalty=0.1 --trials 2", "'0.1'", "write LOW..HIGH"),
    bad("range of words", GRID + "--range penalty=a..b --trials 2", "'a..b'", "write LOW..HIGH"),
    bad("range backwards", GRID + "--range penalty=1..0.1 --trials 2", "1.0..0.1", "low < high"),
    bad("no trials", GRID + "--range penalty=0.1..1 --trials 0", "trials is 0", "at least 1"),
    bad("no values", GRID + "--grid penalty=", "not an assignment", "write KEY=VALUES"),
    bad("tune unknown", GRID + "--grid penalti=1,2", "'penalti'", "did you mean 'penalty'"),
    bad("last point is bad", GRID + "--grid penalty=1,-1", "ρ is -1.0", "greater than 0"),
    bad(
        "nobody to hold out",
        GRID + "--grid penalty=1 --set data.target_share=0.8",
        "leaves none to train",
        "more source nodes",
    ),
    bad(
        "all points diverge",
        GRID + "--grid penalty=1e-30,1e-31",
        "all 2 points diverged",
        "larger penalties",
        code=3,
    ),
    bad(
        "training diverges",
        TRAIN + "--penalty 1e-30",
        "diverged in round 1",
        "raise the penalty",
        code=3,
        leaves=("new/",),
    ),
]

ALL = [*FILES, *PARTITIONS, *SETTINGS, *PRIORS, *INITS, *OWN, *RESUMING, *AFTERWARDS, *SEVERAL]


def check_nothing_lost(
    before: dict[str, str], after: dict[str, str], leaves: Sequence[str]
) -> None:
    """What was there is there, to the byte; what is new was meant to be."""
    assert {path: after.get(path) for path in before} == before
    new = [path for path in after if path not in before]
    assert [path for path in new if not path.startswith(tuple(leaves))] == []
    assert [path for path in new if ".tmp" in path] == []


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("case", ALL, ids=lambda case: case.name)
def test_is_refused_in_one_line(case: Bad, shell: str, playground: Path) -> None:
    for path, text in case.files.items():
        (playground / path).write_text(text)
    if case.prepare is not None:
        (playground / "run/manifest.json").unlink()  # or it would be the first to complain
        case.prepare(playground)
    before = snapshot(playground)
    outcome = call(case.line, shell)
    assert outcome.code == case.code, outcome
    for word in case.words:
        assert word in outcome.complaint
    problem, _, remedy = outcome.complaint.rpartition(": ")
    assert problem
    assert remedy
    check_nothing_lost(before, snapshot(playground), case.leaves)
    if not case.leaves:
        assert not (playground / "new").exists()  # the same command may be tried again


def test_there_are_enough_of_them() -> None:
    names = [case.name for case in ALL]
    assert len(names) == len(set(names)) >= 60


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("shell", SHELLS)
def test_cuda_without_a_gpu(shell: str, playground: Path) -> None:
    outcome = call(TRAIN + "--device cuda", shell)
    assert outcome.code == 2
    assert outcome.complaint == "device is 'cuda' but torch sees no GPU: use --device cpu"


def test_divergence_keeps_the_newest_checkpoint(playground: Path) -> None:
    line = TRAIN + "--rounds 40 --set training.checkpoint_every=1 --penalty 0.02 --model mlp"
    outcome = call(f"{line} --inner-step-size 30 --inner-scope all")
    assert outcome.code == 3
    assert "training diverged in round" in outcome.complaint
    assert "raise the penalty" in outcome.complaint
    diverged_in = int(outcome.complaint.split("in round ")[1].split(":")[0])
    newest = f"new/checkpoints/round-{diverged_in - 1:06d}"
    assert sorted((playground / "new/checkpoints").iterdir())[-1] == playground / newest
    assert outcome.complaint.endswith(f"--init {newest}")
    assert call(f"{TRAIN} --model mlp --init {newest} --penalty 9 --out next").code == 0
    assert json.loads((playground / "new/summary.json").read_text())["status"] == "diverged"
    assert len((playground / "new/metrics.jsonl").read_text().splitlines()) == diverged_in - 1


def test_adaptation_that_diverges_keeps_what_was_trained(playground: Path) -> None:
    line = TRAIN + "--algorithm fedavg --model mlp --inner-step-size 1e38 --inner-scope all"
    outcome = call(line)
    assert outcome.code == 3
    assert "lower the inner step size" in outcome.complaint
    assert (playground / "new/model.safetensors").exists()
    assert json.loads((playground / "new/summary.json").read_text())["status"] == "diverged"


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "No space left on device"),
        (errno.EROFS, "Read-only file system"),
        (errno.EACCES, "Permission denied"),
    ],
)
@pytest.mark.parametrize("writes", [0, 2, 5])
def test_disk_that_refuses(
    number: int, words: str, writes: int, playground: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From some write on, in the midst of a run, the disk refuses: one line, nothing half done."""
    real, left = storage._write_synced, writes

    def refuse(path: Path, content: bytes) -> None:
        nonlocal left
        if left == 0:
            path.write_bytes(content[: len(content) // 2])
            raise OSError(number, os.strerror(number))
        left -= 1
        real(path, content)

    before = snapshot(playground)
    monkeypatch.setattr(storage, "_write_synced", refuse)
    outcome = call(TRAIN + "--set training.checkpoint_every=1")
    assert outcome.code == 2
    assert f"({words})" in outcome.complaint
    assert "--out" in outcome.complaint
    check_nothing_lost(before, snapshot(playground), ("new/",))
    assert not list(playground.rglob(".*.tmp"))
    monkeypatch.setattr(storage, "_write_synced", real)
    again = "train --resume new" if (playground / "new/settings.json").exists() else TRAIN
    assert call(again).code == 0  # and with room again, on it goes
    summary = json.loads((playground / "new/summary.json").read_text())
    assert (summary["status"], summary["rounds"]) == ("finished", 2)


def test_old_report_survives_a_full_disk(playground: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, content: bytes) -> None:
        path.write_bytes(content[:100])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    before = snapshot(playground)
    monkeypatch.setattr(storage, "_write_synced", refuse)
    for line in ("report run", "data --data digits --out mine.csv", "evaluate run --out mine.csv"):
        outcome = call(line)
        assert outcome.code == 2
        assert "No space left on device" in outcome.complaint
    assert snapshot(playground) == before


def test_links_stay_links(playground: Path) -> None:
    (playground / "link.json").symlink_to("real.json")
    assert call("data --data data.csv --node device --out link.json").code == 0
    assert (playground / "link.json").is_symlink()
    assert json.loads((playground / "real.json").read_text())["counts"]["nodes"] == 6


def test_interruption(playground: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("fedmeta.cli.train.train_run", interrupt)
    for shell in SHELLS:
        outcome = call(TRAIN, shell)
        assert outcome.code == 130
        assert outcome.complaint == "interrupted: nothing was written yet"


# As programs of their own: what only the operating system can do.

DATA = ["data", "--data", "data.csv", "--node", "device"]
NO_LARGE_FILES = """
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1200, 1200))
"""


@pytest.mark.slow
def test_a_disk_that_is_really_full(playground: Path) -> None:
    before = snapshot(playground)
    outcome = spawn(TRAIN.split(), playground, prelude=NO_LARGE_FILES, measured=False)
    assert outcome.code == 2
    assert "cannot write new/federation.json (File too large)" in outcome.complaint
    assert "free some space" in outcome.complaint
    check_nothing_lost(before, snapshot(playground), ())
    assert spawn(TRAIN.split(), playground).code == 0


def test_output_to_a_full_disk(playground: Path) -> None:
    prelude = "import os; os.dup2(os.open('/dev/full', os.O_WRONLY), 1)"
    outcome = spawn(DATA, playground, prelude=prelude)
    assert outcome.code == 2
    assert "No space left on device" in outcome.complaint


def test_a_reader_that_has_seen_enough(playground: Path) -> None:
    prelude = "import os; r, w = os.pipe(); os.close(r); os.dup2(w, 1)"
    outcome = spawn(DATA, playground, prelude=prelude)
    assert (outcome.code, outcome.err) == (0, "")


@pytest.mark.parametrize(
    ("module", "line", "words"),
    [
        ("fedmeta", "train --data no.csv", "there is no file or folder no.csv: check the path"),
        ("fedmeta.cli.train", "--penalty -1", "penalty ρ is -1.0: give a number greater than 0"),
        (
            "fedmeta.cli.evaluate",
            "run --steps a",
            "--steps is 'a': write whole numbers, e.g. 0,1,5",
        ),
        (
            "fedmeta.cli.compare",
            "fedavg --equals 1",
            "unrecognized arguments: --equals 1: see --help",
        ),
    ],
)
def test_as_a_program(module: str, line: str, words: str, playground: Path) -> None:
    before = snapshot(playground)
    outcome = spawn(line.split(), playground, module)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.complaint == words
    assert snapshot(playground) == before

"""What newcomers stumbled over, met as they met it: by commands, files and public names alone.

Nothing here imports what is inside, so that the file also runs on older code, where it fails.
"""

from __future__ import annotations

import gzip
import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedmeta
from cli.calling import Outcome, call

ROOT = Path(__file__).parents[2]
DEVICES, EACH = 10, 16
QUICK = "--model linear --rounds 2"

Columns = dict[str, list[Any]]


def columns() -> Columns:
    """Two numbers that say whether a machine is worn."""
    rng = np.random.default_rng(0)
    worn = np.arange(DEVICES * EACH) % 4 == 0
    heat = rng.normal(size=len(worn)) + 2 * worn
    return {
        "heat": [f"{each:.3f}" for each in heat],
        "noise": [f"{each:.3f}" for each in rng.normal(size=len(worn)) + 1],
        "device_id": [f"m{number // EACH}" for number in range(len(worn))],
        "state": ["worn" if each else "ok" for each in worn],
    }


def write(path: str, table: Columns, mark: str = ",") -> None:
    rows = zip(*table.values(), strict=True)
    lines = [mark.join(table), *(mark.join(map(str, row)) for row in rows)]
    Path(path).write_text("\n".join(lines) + "\n")


def said(line: str) -> str:
    outcome = call(line, "plain")
    assert outcome.code == 0, outcome.err
    return outcome.out


def refused(line: str) -> str:
    outcome = call(line, "plain")
    assert outcome.code == 2, outcome
    return outcome.complaint


def summary(folder: str = "run") -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(folder, "summary.json").read_text())
    return found


@pytest.fixture(autouse=True)
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write("t.csv", columns())


TRAIN = f"train --data t.csv --label state --node device_id {QUICK}"


def test_labels_of_any_size_are_learned() -> None:
    table, rng = columns(), np.random.default_rng(1)
    hours = [5000 - 1000 * float(heat) + rng.normal() for heat in table["heat"]]
    write("reg.csv", {**table, "state": [f"{each:.1f}" for each in hours]})
    said(
        "train --data reg.csv --label state --node device_id --task regression --model linear "
        "--rounds 30 --out run"
    )
    assert summary()["target_metric"]["1"]["mean"] < 0.2 * np.var(hours)


def test_columns_of_a_frame_go_by_name() -> None:
    pandas = pytest.importorskip("pandas")
    said(f"{TRAIN} --out run")
    model = fedmeta.MetaModel.load("run")
    frame = pandas.read_csv("t.csv")[["heat", "noise"]]
    assert model.classify(frame) == model.classify(frame[["noise", "heat"]])
    with pytest.raises(fedmeta.FedmetaError, match="'noise'"):
        model.classify(frame[["heat"]])


def test_accuracy_is_not_all_that_is_told_of_classes() -> None:
    text = said(f"{TRAIN} --out run")
    for name in ("balanced-accuracy", "f1", "auc"):
        assert name in text
    assert "majority" in text or "most frequent class" in text


def test_a_comparison_says_whose_steps_were_found() -> None:
    asked = f"--data t.csv --label state --node device_id {QUICK} --seeds 1"
    text = said(f"compare admm-fedmeta fedavg {asked} --out both")
    for name, found in {"admm-fedmeta": "automatic", "fedavg": "default"}.items():
        assert re.search(rf"^\W*{name}\W+{found}\b", text, re.MULTILINE)
    assert "fedavg has a default step size that nobody tuned" in " ".join(text.split())
    assert "±" not in text


def messy() -> Columns:
    """Words, a moment and gaps beside the numbers."""
    table = columns()
    count = range(len(table["heat"]))
    table["heat"] = ["" if i % 9 == 4 else each for i, each in enumerate(table["heat"])]
    table["mode"] = [["idle", "run"][i % 2] for i in count]
    table["at"] = [f"2024-01-{i % 28 + 1:02} 06:00" for i in count]
    return table


def test_all_faults_come_at_once_with_lines_of_the_file() -> None:
    table = messy()
    table["noise"][2], table["state"][5] = "broken", ""
    write("messy.csv", table)
    told = refused(f"train --data messy.csv --label state --node device_id {QUICK}")
    for words in ("line 4", "'broken'", "line 7", "'state'", "18 values missing in 18 rows"):
        assert words in told


def test_words_moments_and_gaps_are_taken_as_they_are() -> None:
    write("messy.csv", messy())
    chosen = "--data messy.csv --label state --node device_id --missing mean"
    said(f"train {chosen} {QUICK} --out run")
    about = fedmeta.MetaModel.load("run").about
    assert about["features"] == ["heat", "noise", "mode=idle", "mode=run"]
    said(f"train {chosen} --drop noise --time at {QUICK} --out ordered")


def test_ids_are_no_features_and_a_forgotten_node_is_noticed() -> None:
    table = columns()
    ids = {"id": list(range(len(table["heat"]))), **table}
    ids["device_id"] = [each.removeprefix("m") for each in table["device_id"]]
    write("intid.csv", ids)
    text = said("data --data intid.csv --label state --nodes 4 --set data.samples=[8,12]")
    assert "samples of shape (2,)" in text
    assert "--node 'device_id'" in text


class Terminal:
    """Standard error as a person sees it."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> None:
        self.text += text

    def flush(self) -> None: ...

    def isatty(self) -> bool:
        return True


def small() -> Any:
    labels = np.arange(400) % 2
    x = np.random.default_rng(0).normal(size=(400, 3)) + labels[:, None]
    return fedmeta.federate(x, labels, node=np.arange(400) // 20)


def test_a_notebook_is_not_flooded() -> None:
    federation = small()
    run = fedmeta.train(federation, fedmeta.ModelSettings("linear"), rounds=2)
    for thing in (federation, run, run.meta_model):
        assert len(repr(thing)) < 300
        assert "<table" in thing._repr_html_()


def test_training_is_not_silent_where_a_person_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    fedmeta.train(small(), fedmeta.ModelSettings("linear"), rounds=2)
    assert "2/2" in screen.text


def test_a_plain_function_watches_and_stops_a_run() -> None:
    seen = []

    def watch(record: Any) -> None:
        seen.append(record["round"])
        if record["round"] == 3:
            raise fedmeta.StopTraining

    linear = fedmeta.ModelSettings("linear")
    fedmeta.train(small(), linear, rounds=2, callbacks=[watch])  # type: ignore[list-item]
    assert seen == [1, 2]
    run = fedmeta.train(small(), linear, rounds=9, callbacks=[watch])  # type: ignore[list-item]
    assert len(run.history) <= 4  # where rounds overlap it is heard one round later
    assert run.accuracy() > 0


def test_adapt_knows_the_label_and_writes_a_model_of_all_samples() -> None:
    said(f"{TRAIN} --out run")
    write("mine.csv", {name: cells[:12] for name, cells in columns().items()})
    text = said("adapt run --data mine.csv --out mine.safetensors")
    assert "all 12 samples" in text
    model, mine = (fedmeta.MetaModel.load(name) for name in ("run", "mine.safetensors"))
    own = columns()
    x = np.array([own["heat"][:12], own["noise"][:12]], np.float32).T
    whole = model.adapt(x, own["state"][:12])
    for name, leaf in whole.theta.items():
        assert mine.theta[name].numpy() == pytest.approx(leaf.numpy(), abs=1e-5)
    write("other.csv", {"condition" if n == "state" else n: c[:12] for n, c in columns().items()})
    assert "--label" in refused("adapt run --data other.csv")


def test_python_is_spoken_to_in_python(tmp_path: Path) -> None:
    linear = fedmeta.ModelSettings("linear")

    def stop(record: Any) -> None:
        raise KeyboardInterrupt

    cut = {"callbacks": [stop], "folder": tmp_path / "run"}
    with pytest.raises(KeyboardInterrupt):
        fedmeta.train(small(), linear, rounds=3, **cut)  # type: ignore[arg-type]
    with pytest.raises(fedmeta.FedmetaError) as error:
        fedmeta.train(small(), linear, rounds=3, folder=tmp_path / "run")
    assert "resume=True" in str(error.value)
    assert "--" not in str(error.value)


def test_the_command_line_is_spoken_to_in_flags() -> None:
    write("values.csv", {**columns(), "state": columns()["heat"]})
    told = refused("train --data values.csv --label state --node device_id")
    assert "--task regression" in told
    assert "task =" not in told


def test_the_name_of_an_algorithm_is_refused_in_words() -> None:
    with pytest.raises(fedmeta.FedmetaError, match=r"FedAvg\(\)"):
        fedmeta.train(small(), fedmeta.ModelSettings("linear"), "fedavg", rounds=1)  # type: ignore[arg-type]


def diagnosis() -> Outcome:
    said(f"{TRAIN} --out run")
    outcome = call("diagnose run", "plain")
    assert outcome.code == 0, outcome.err
    return outcome


def test_a_diagnosis_begins_with_what_matters_and_is_not_silent() -> None:
    found = diagnosis()
    assert re.search(r"round \d+/\d+", found.err)
    first = found.out.splitlines()[1]
    assert "onverged" in first
    assert "violated" not in found.out


def test_semicolons_decimal_commas_and_gzip() -> None:
    table = columns()
    for name in ("heat", "noise"):
        table[name] = [each.replace(".", ",") for each in table[name]]
    write("semi.csv", table, ";")
    Path("zipped.csv.gz").write_bytes(gzip.compress(Path("semi.csv").read_bytes()))
    said(f"{TRAIN} --out plain")
    for name in ("semi.csv", "zipped.csv.gz"):
        said(f"{TRAIN.replace('t.csv', name)} --out {name}-run")
        assert summary(f"{name}-run")["target_metric"] == summary("plain")["target_metric"]


def test_truth_is_truth_in_either_file() -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    truth = [number % 3 == 0 for number in range(DEVICES * EACH)]
    table = {**columns(), "on": truth}
    write("truth.csv", table)
    numbers = {n: list(map(float, c)) if n in ("heat", "noise") else c for n, c in table.items()}
    parquet.write_table(pyarrow.table(numbers), "truth.parquet")
    for name in ("truth.csv", "truth.parquet"):
        said(f"{TRAIN.replace('t.csv', name)} --out {name}-run")
    first, second = (summary(f"truth.{kind}-run")["target_metric"] for kind in ("csv", "parquet"))
    assert first == second


def test_two_seeds_crown_nobody() -> None:
    line = TRAIN.replace("train", "tune").replace(" --rounds 2", " --rounds 1")
    text = said(f"{line} --algorithm fedavg --grid step_size=0.1,0.2 --seeds 2")
    assert "±" not in text
    assert "best: --set" not in text


def test_one_step_is_singular_everywhere() -> None:
    text = said(f"{TRAIN} --out run")
    write("mine.csv", {name: cells[:12] for name, cells in columns().items()})
    text += said("adapt run --data mine.csv --steps 1") + said("evaluate run")
    text += Path("run/report.html").read_text()
    assert re.findall(r"\D1 steps", text) == []


def test_samples_come_from_something() -> None:
    assert "from drawn here" not in said("data --data sinusoid")


def test_the_demo_shows_why_one_would_want_it() -> None:
    """It is ahead on nearly every new device; where one model serves all most are level."""
    line = f"compare admm-fedmeta fedavg --config {ROOT / 'examples/demo.toml'} --rounds 60"
    if call(f"{line} --seeds 1 --steps automatic --out demo", "plain").code != 0:  # older code
        said(f"{line} --seeds 1 --out demo")
    found = json.loads(Path("demo/comparison.json").read_text())
    ends = [summary(f"demo/{row['runs'][0]}")["targets"] for row in found["rows"]]
    ours, theirs = (np.array([each["metric"]["1"] for each in end]) for end in ends)
    ahead = ours > theirs if found["metric"] == "accuracy" else ours < theirs
    assert ahead.mean() > 0.75


def test_the_readme_begins_with_what_a_stranger_asks() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    picture = re.search(r"!\[[^]]+\]\((\S+)\)", text)
    assert picture is not None
    assert (ROOT / picture[1]).is_file()
    headings = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert headings[:4] == ["Why this", "Install", "Two commands", "Ten lines of Python"]
    assert picture.start() < text.index("## Why this")
    why = text[text.index("## Why this") : text.index("## Install")]
    for name in ("Flower", "PFLlib", "NVFlare", "pfl-research"):
        assert f"[{name}](http" in why
    assert "pip install" in text[text.index("## Install") : text.index("## Two commands")]


def test_conclusions_fit_a_page() -> None:
    lines = (ROOT / "docs/results.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) < 200
    assert sum(line.startswith("|") for line in lines) < 60

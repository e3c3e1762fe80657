"""From a messy table on the command line: check-up, training, adapting, predicting."""

from __future__ import annotations

import csv
import gzip
import json
import re
from pathlib import Path

import numpy as np
import pytest

from cli.calling import call
from fedmeta import MetaModel
from fedmeta.data.encoding import model_encoding
from fedmeta.data.readers.table import read_inputs
from fedmeta.fleet.reopen import samples_for

SHELL = "plain"


def said(line: str) -> str:
    outcome = call(line, SHELL)
    assert outcome.code == 0, outcome.err
    return outcome.out


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with machines.csv, a run on it, and a dozen samples of a new machine."""
    folder = tmp_path_factory.mktemp("machines")
    rng = np.random.default_rng(0)
    lines = ["nr_id;heat;mode;machine;wear"]
    for i in range(320):
        worn = i % 4 == 0
        heat = "" if i % 50 == 7 else f"{rng.normal() + 2 * worn:.2f}".replace(".", ",")
        lines.append(f"{i};{heat};{['idle', 'run'][i % 2]};m{i // 20};{'bad' if worn else 'ok'}")
    (folder / "machines.csv").write_text("\n".join(lines) + "\n")
    (folder / "new.csv").write_text("\n".join([lines[0], *lines[21:33]]) + "\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        said(
            "train --data machines.csv --label wear --node machine --missing mean --model linear "
            "--rounds 5 --metric balanced-accuracy --out run"
        )
    return folder


@pytest.fixture
def place(trained: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(trained)
    return trained


def test_predict_keeps_rows_and_adds_answers(place: Path) -> None:
    text = said("predict run --data machines.csv --out answers.csv")
    assert "320 rows with 'predicted' and 'probability' written to answers.csv" in text
    files = (Path(name).read_text().splitlines() for name in ("machines.csv", "answers.csv"))
    old, new = (list(csv.reader(each, delimiter=";")) for each in files)
    assert new[0] == [*old[0], "predicted", "probability"]
    assert [row[:5] for row in new] == old
    model = MetaModel.load("run")
    encoding = model_encoding(model.about)
    assert encoding is not None
    outputs = model.predict(read_inputs(Path("machines.csv"), encoding).inputs).numpy()
    names = np.array(model.task.class_names)[outputs.argmax(axis=1)]
    assert [row[5] for row in new[1:]] == names.tolist()
    assert [float(row[6].replace(",", ".")) for row in new[1:]] == pytest.approx(
        outputs.max(axis=1), abs=1e-5
    )
    zipped = gzip.compress(Path("machines.csv").read_bytes())
    Path("machines.csv.gz").write_bytes(zipped)
    said("predict run/model.safetensors --data machines.csv.gz --out again.csv")
    assert Path("again.csv").read_bytes() == Path("answers.csv").read_bytes()


def test_predict_writes_numbers_as_the_file_does(place: Path) -> None:
    """A comma where the file has commas, which is what a spreadsheet there reads as numbers."""
    said("predict run --data machines.csv --out commas.csv")
    with Path("commas.csv").open(newline="") as file:
        written = [row["probability"] for row in csv.DictReader(file, delimiter=";")]
    assert all(re.fullmatch(r"0,\d+|1", each) for each in written)
    lines = Path("machines.csv").read_text().replace(",", ".").replace(";", ",")
    Path("points.csv").write_text(lines)
    said("predict run --data points.csv --out points_out.csv")
    with Path("points_out.csv").open(newline="") as file:
        pointed = [row["probability"] for row in csv.DictReader(file)]
    assert pointed == [each.replace(",", ".") for each in written]


def test_the_metric_that_was_asked_for_goes_first(place: Path) -> None:
    text = said(
        "train --data machines.csv --label wear --node machine --missing mean --model linear "
        "--rounds 1 --metric balanced-accuracy --out headline"
    )
    titles = [line for line in text.splitlines() if "by adaptation steps" in line]
    assert titles[0].startswith("balanced-accuracy of")


def test_predict_says_what_is_missing(place: Path) -> None:
    Path("odd.csv").write_text("heat;moode\n1,5;run\n2,5;idle\n")
    outcome = call("predict run --data odd.csv --out no.csv", SHELL)
    assert outcome.code == 2
    assert "no feature column 'mode'" in outcome.complaint
    assert "did you mean 'moode'?" in outcome.complaint
    assert not Path("no.csv").exists()
    assert "--data and --out" in call("predict run", SHELL).complaint


def test_adapt_knows_the_label_and_writes_a_model_of_all_samples(place: Path) -> None:
    text = said("adapt run --data new.csv --out mine.safetensors")
    assert "on 6 samples, adapted to 6 others" in text
    assert "adapted to all 12 samples, also to the 6 it was measured on" in text
    model, mine = MetaModel.load("run"), MetaModel.load("mine.safetensors")
    pool = samples_for(model, "new.csv", None)
    expected = model.adapt(pool.inputs, np.array(pool.class_names)[pool.labels])
    order = {name: number for number, name in enumerate(mine.theta)}
    for name in order:
        assert mine.theta[name].numpy() == pytest.approx(expected.theta[name].numpy(), abs=1e-5)
    lines = Path("new.csv").read_text().replace("wear", "condition")
    Path("other.csv").write_text(lines)
    complaint = call("adapt run --data other.csv", SHELL).complaint
    assert "no column 'wear' for the label" in complaint
    assert "--label" in complaint
    said("adapt run --data other.csv --label condition")


def test_adapt_and_evaluate_show_the_metric_that_was_trained_for_or_asked_for(place: Path) -> None:
    assert MetaModel.load("run").about["metric"] == "balanced-accuracy"
    head = said("adapt run --data new.csv").splitlines()
    columns = next(line for line in head if "model" in line)
    assert columns.index("balanced-accuracy") < columns.index(" accuracy") < columns.index("f1")
    asked = next(
        line
        for line in said("adapt run --data new.csv --metric f1").splitlines()
        if "model" in line
    )
    assert asked.index("f1") < asked.index("balanced-accuracy")
    text = said("evaluate run --metric f1 --per-node")
    assert text.index("f1 of 3 target nodes") < text.index("accuracy of 3 target nodes of")
    assert "f1 of every target node" in text
    assert "balanced-accuracy of 3 target nodes" in said("evaluate run")
    for line in ("adapt run --data new.csv", "evaluate run"):
        outcome = call(f"{line} --metric mae", SHELL)
        assert outcome.code == 2
        assert "use one of: accuracy, balanced-accuracy, f1, auc" in outcome.complaint


def test_compare_shows_the_metric_that_was_asked_for(place: Path) -> None:
    text = said(
        "compare fedavg reptile --data machines.csv --label wear --node machine --missing mean "
        "--model linear --rounds 1 --seeds 1 --metric f1 --out both"
    )
    assert "f1 of the target nodes, 1 seed" in text


def test_the_check_up_as_text_json_and_page(place: Path) -> None:
    text = said(
        "data machines.csv --label wear --node machine --missing mean --html c.html --out c.json"
    )
    assert "left out: an index of the rows" in text
    assert "classes: ok 240 (75%), bad 80 (25%)" in text
    assert "16 nodes" in text
    found = json.loads(Path("c.json").read_text())["checkup"]
    assert [each["role"] for each in found["columns"]][3:] == ["node", "label"]
    page = Path("c.html").read_text()
    assert "Ready to train: 16 nodes, 3 inputs." in page
    assert '<html lang="en">' in page
    assert "http://" not in page
    assert "<script" not in page
    outcome = call("data machines.csv --label wear", SHELL)
    assert outcome.code == 2
    assert "change:  'machine' has 16 values: is it the device?" in outcome.out
    assert "7 values missing in 7 rows ('heat' 7) (line 9" in outcome.complaint
    assert "7 values missing" not in outcome.out  # told once
    assert "5 columns; semicolons between values, decimal commas" in outcome.out


def test_lists_of_columns(place: Path) -> None:
    by_comma = said("data machines.csv --label wear --node machine --drop heat,nr_id")
    twice = said("data machines.csv --label wear --node machine --drop heat --drop nr_id")
    assert by_comma == twice
    assert "samples of shape (2,)" in twice
    one = "data machines.csv --label wear --node machine --missing drop --features heat"
    assert "samples of shape (1,)" in said(one)


def test_tune_with_two_seeds_names_no_best(place: Path) -> None:
    text = said(
        "tune --data machines.csv --label wear --node machine --missing mean --model linear "
        "--rounds 1 --algorithm fedavg --grid step_size=0.1,0.2 --seeds 2"
    )
    assert "±" not in text
    assert "best: --set" not in text
    assert "→" not in text
    assert "2 seeds cannot tell which is best: use --seeds 3 or more" in text

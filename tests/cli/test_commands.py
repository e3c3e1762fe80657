"""What every command does when all is well, in both shells."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch

from cli.calling import COMMANDS, SHELLS, call, snapshot, succeed
from fedmeta import MetaModel
from fedmeta.cli.command import Command
from fedmeta.cli.data import picture
from fedmeta.core.manifest import FILE as MANIFEST
from fedmeta.core.run_folder import RunFolder
from fedmeta.evaluation.intervals import student_quantile

DATA = "--data data.csv --node device --model linear "
shells = pytest.mark.parametrize("shell", SHELLS)


def read(path: Path | str) -> Any:
    return json.loads(Path(path).read_text())


@shells
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_help_names_every_option(
    command: Command, shell: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    text = succeed(f"{command.name} --help", shell)
    for parameter in command.parameters:
        if parameter.argument:
            assert parameter.name in text.lower()
        else:
            assert all(flag in text for flag in parameter.flags)
        assert parameter.help.split()[0] in text
    assert command.example in " ".join(text.split())


@shells
def test_help_names_every_command(shell: str) -> None:
    text = succeed("--help", shell)
    assert all(command.name in text for command in COMMANDS)


@shells
def test_alone_it_prints_help(shell: str) -> None:
    outcome = call("", shell)
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out == succeed("--help", shell)


@shells
def test_version(shell: str) -> None:
    text = succeed("--version", shell)
    assert all(word in text for word in ("fedmeta ", "python ", "torch ", "numpy "))


@shells
def test_train_leaves_a_run(shell: str, playground: Path) -> None:
    text = succeed(f"train {DATA} --rounds 2 --out new", shell)
    assert "finished after 2 rounds" in text
    assert "head     1.weight, 1.bias (" in text
    assert text.index("head     ") < text.index("finished after")
    assert "report   new/report.html" in text
    assert {path.name for path in Path("new").iterdir()} == {
        ".lock",
        "settings.json",
        "federation.json",
        "metrics.jsonl",
        "checkpoints",
        "model.safetensors",
        "summary.json",
        "report.html",
        "manifest.json",
    }
    assert [record["round"] for record in RunFolder(Path("new")).history()] == [1, 2]
    summary = read("new/summary.json")
    assert summary["status"] == "finished"
    assert set(summary["target_metric"]) == {"0", "1", "5"}


def test_folders_get_names_of_their_own(playground: Path) -> None:
    for _ in range(2):
        succeed(f"train {DATA} --rounds 1")
    names = {path.name for path in Path("runs").iterdir()}
    assert names == {"admm-fedmeta-data", "admm-fedmeta-data-2"}


def test_both_shells_train_the_same(playground: Path) -> None:
    for shell in SHELLS:
        succeed(f"train {DATA} --rounds 3 --seed 5 --penalty 0.7 --out {shell}", shell)
    typer, plain = (read(f"{shell}/summary.json")["target_metric"] for shell in SHELLS)
    assert typer == plain
    assert (
        snapshot(Path("typer"))["model.safetensors"] != snapshot(Path("run"))["model.safetensors"]
    )


@shells
def test_resume_goes_on_as_if_never_stopped(shell: str, playground: Path) -> None:
    succeed(f"train {DATA} --rounds 5 --out whole", shell)
    succeed(f"train {DATA} --rounds 2 --out parts", shell)
    text = succeed("train --resume parts --rounds 5", shell)
    assert "finished after 5 rounds" in text
    whole, parts = read("whole/summary.json"), read("parts/summary.json")
    assert parts["target_metric"] == whole["target_metric"]
    assert parts["rounds"] == 5
    losses = [[r["meta_loss"] for r in RunFolder(Path(n)).history()] for n in ("whole", "parts")]
    assert losses[0] == losses[1]
    theta = [MetaModel.load(name).theta["1.weight"] for name in ("whole", "parts")]
    assert theta[0].equal(theta[1])


@shells
def test_evaluate_gives_the_summary_to_the_bit(shell: str, playground: Path) -> None:
    text = succeed("evaluate run --per-node --out numbers/here.json", shell)
    assert "Every target node" in text
    assert "device-" in text
    found, summary = read("numbers/here.json"), read("run/summary.json")
    assert found["target_metric"] == summary["target_metric"]
    assert found["targets"] == summary["targets"]


def test_evaluate_says_that_files_cannot_be_checked(playground: Path) -> None:
    shutil.copytree("run", "older")
    (Path("older") / MANIFEST).unlink()
    assert RunFolder(Path("run")).note() is None
    assert "cannot be checked" not in succeed("evaluate run", "plain")
    told = " ".join(succeed("evaluate older", "plain").split())
    assert str(RunFolder(Path("older")).note()) in told


def test_a_majority_that_explains_the_accuracy_is_told(playground: Path) -> None:
    rows = ["x,y,device,label"]
    for number in range(160):  # 7 of 8 of one class, and nothing to tell the other by
        label = "rare" if number % 8 == number // 40 else "often"
        rows.append(f"{number % 5},{number % 3},d{number // 20},{label}")
    Path("skewed.csv").write_text("\n".join(rows))
    data = "--data skewed.csv --node device --model linear --rounds 1 --out"
    note = "note     the most frequent class (often) alone gives "
    assert note in succeed(f"train {data} skewed", "plain")
    assert note in succeed("evaluate skewed", "plain")
    text = succeed(f"train {data} balanced --loss balanced-cross-entropy", "plain")
    assert "finished after 1 rounds" in text
    weights = MetaModel.load("balanced").about["class_weights"]
    counts = {"often": 0, "rare": 0}
    for node in read("balanced/federation.json")["nodes"]:
        for name, count in node["classes"].items() if node["role"] == "source" else ():
            counts[name] += count
    total = sum(counts.values())
    assert weights == pytest.approx([total / 2 / counts["often"], total / 2 / counts["rare"]])


def test_devices_decide(playground: Path) -> None:
    text = succeed("evaluate run --decide --per-node --out numbers.json")
    found = read("numbers.json")
    told, rows = found["decided_metric"]["target"], found["targets"]
    assert told["mean"] == pytest.approx(np.mean([row["decided"] for row in rows]))
    assert sum(told["choices"].values()) == len(rows)
    line = next(line for line in text.splitlines() if "decided" in line and "%" in line)
    assert f"{100 * told['mean']:.1f} %" in line
    assert found["target_metric"] == read("run/summary.json")["target_metric"]
    text = succeed(f"adapt run --target {rows[0]['name']} --decide --out mine.safetensors")
    assert f"decided: {rows[0]['choice']}" in text
    chosen = MetaModel.load("mine.safetensors").about["decision"]["choice"]
    assert f"by what all samples chose: {chosen}" in text
    text = succeed(f"train {DATA} --rounds 3 --decide --out deciding")
    summary = read("deciding/summary.json")
    assert "decided" in text
    assert [row["choice"] for row in summary["targets"]] == [row["choice"] for row in rows]


def test_answers_may_be_left_open(playground: Path) -> None:
    text = succeed("evaluate run --abstain 0.2 --out numbers.json")
    told = read("numbers.json")["abstaining"]
    assert told["share"] == 0.2
    assert f"answers {100 * told['coverage']:.1f} % of the samples" in text
    # Its counts are of nodes that the model has seen.
    for shown in (text, succeed("evaluate run")):
        assert "nothing is promised before `fedmeta calibrate`" in shown
    for share, words in (("1", "below 1"), ("-0.1", "at least 0")):
        outcome = call(f"evaluate run --abstain {share}")
        assert outcome.code == 2
        assert words in outcome.complaint
    older = replace(MetaModel.load("run"), calibration=None)
    older.save("run/model.safetensors")
    Path("run/manifest.json").unlink()
    assert "abstaining" not in succeed("evaluate run")
    outcome = call("evaluate run --abstain 0.2")
    assert outcome.code == 2
    assert "no calibration" in outcome.complaint


def test_evaluate_with_other_steps_and_data(playground: Path) -> None:
    lines = Path("data.csv").read_text().splitlines()
    doubled = [lines[0], *lines[1:], *(line + "x" for line in lines[1:])]  # twelve devices
    Path("more.csv").write_text("\n".join(doubled) + "\n")
    succeed("evaluate run --data more.csv --steps 0,3 --inner-step-size 0.5 --out more.json")
    found = read("more.json")
    assert set(found["target_metric"]) == {"0", "3"}
    assert len(found["targets"]) == 2  # a fifth of twelve
    succeed("evaluate run --steps 3 --out own.json")
    assert found["target_metric"]["3"] != read("own.json")["target_metric"]["3"]
    succeed("evaluate run --data more.csv --steps 0,3 --seed 1 --out again.json")
    nodes = [[row["name"] for row in each["targets"]] for each in (found, read("again.json"))]
    assert nodes[0] != nodes[1]


def test_evaluate_on_another_device_as_advised(playground: Path) -> None:
    settings = read("run/settings.json")
    settings["settings"]["execution"]["device"] = "cuda"
    Path("run/settings.json").write_text(json.dumps(settings))
    Path("run/manifest.json").unlink()
    succeed("evaluate run --device cpu --out here.json")
    assert read("here.json")["target_metric"] == read("run/summary.json")["target_metric"]


@shells
def test_adapt_to_a_file(shell: str, playground: Path) -> None:
    line = "adapt run --data mine.csv --steps 7 --seed 3 --out deep/adapted.safetensors"
    text = succeed(line, shell)
    assert "before" in text
    assert "after 7 steps" in text
    assert "6 samples, adapted to 6 others" in text
    before, after = MetaModel.load("run"), MetaModel.load("deep/adapted.safetensors")
    assert not before.theta["1.weight"].equal(after.theta["1.weight"])
    rows = np.array([[1.0, 2.0], [0.0, -3.0]])
    assert after.classify(rows)[0] in "abc"
    assert after.task == before.task
    # Using all samples is what Python would do, to the bit.
    succeed("adapt run --data mine.csv --support-share 1 --out all.safetensors", shell)
    table = [line.split(",") for line in Path("mine.csv").read_text().split()[1:]]
    features = np.array([row[:2] for row in table], np.float32)
    expected = before.adapt(features, [row[2] for row in table])
    found = MetaModel.load("all.safetensors")
    assert all(leaf.equal(found.theta[name]) for name, leaf in expected.theta.items())


def test_adapt_to_a_node_of_the_run(playground: Path) -> None:
    target = read("run/summary.json")["targets"][0]
    text = succeed(f"adapt run --target {target['name']} --steps 5")
    for steps, name in (("0", "before"), ("5", "after 5 steps")):
        row = next(line for line in text.splitlines() if name in line)
        assert f"{100 * target['metric'][steps]:.1f} %" in row


def test_adapting_to_a_source_is_told_of(playground: Path) -> None:
    nodes = read("run/federation.json")["nodes"]
    for node in nodes:
        text = succeed(f"adapt run --target {node['name']}")
        warned = f"warning: the model was trained on {node['name']}" in text
        assert warned == (node["role"] == "source")


def test_adapt_reads_columns_by_name(playground: Path) -> None:
    succeed("adapt run --data mine.csv --out plain.safetensors")
    rows = [line.split(",") for line in Path("mine.csv").read_text().split()[1:]]
    lines = ["user,label,height,width", *(f"me,{c},{b},{a}" for a, b, c in rows)]
    Path("mine.csv").write_text("\n".join(lines) + "\n")
    succeed("adapt run --data mine.csv --out permuted.safetensors")
    plain, permuted = (MetaModel.load(f"{n}.safetensors").theta for n in ("plain", "permuted"))
    assert all(leaf.equal(permuted[name]) for name, leaf in plain.items())


def test_a_device_names_the_classes_of_an_episode(playground: Path) -> None:
    data = "--data digits --partition episodes --nodes 6 --classes-per-node 2"
    succeed(f"train {data} --model linear --rounds 1 --out eps")
    rng = np.random.default_rng(0)
    names = np.array(["moth", "ant"] * 4)
    np.savez("device.npz", x=rng.normal(size=(8, 1, 8, 8)).astype(np.float32), y=names)
    succeed("adapt eps --data device.npz --out device.safetensors")
    device = MetaModel.load("device.safetensors")
    assert device.task.class_names == ("ant", "moth")
    assert {*device.classify(rng.normal(size=(9, 1, 8, 8)))} <= {"ant", "moth"}
    np.savez("device.npz", x=np.zeros((3, 1, 8, 8), np.float32), y=np.arange(3))
    assert "3 classes, the model tells 2 apart" in call("adapt eps --data device.npz").complaint


def test_adapt_by_regression(playground: Path) -> None:
    data = "--data waves.csv --node device --label y --task regression --model linear"
    succeed(f"train {data} --rounds 2 --out waves")
    Path("own.csv").write_text("x,y\n1,2\n2,4\n3,6\n4,8\n")
    text = succeed("adapt waves --data own.csv --label y --steps 20 --seed 1")
    assert "measured on 2 samples" in text
    rows = [line.split("│") for line in text.splitlines() if line.startswith("│")]
    before, after = (float(row[2]) for row in rows)
    assert after < before


@shells
def test_report_writes_the_page_again(shell: str, playground: Path) -> None:
    Path("run/report.html").unlink()
    assert succeed("report run", shell).strip() == "report   run/report.html"
    assert Path("run/report.html").read_text().startswith("<!")


@shells
def test_data_draws_a_picture(shell: str, playground: Path) -> None:
    text = succeed("data --data data.csv --node device --out about.json", shell)
    assert "6 nodes: 5 sources, 1 targets; 72 samples" in text
    rows = [line for line in text.splitlines() if line.startswith("device-")]
    assert [row.split()[0] for row in rows] == [f"device-{n}" for n in range(6)]
    assert sum("●" in row for row in rows) == 1
    assert all(row.endswith("███  12") for row in rows)
    assert read("about.json")["counts"]["samples"] == 72


def test_picture_of_a_large_federation() -> None:
    nodes = [{"name": f"n{i}", "role": "source", "classes": {"c0": 1, "c1": 4}} for i in range(70)]
    lines = picture(nodes, [f"c{i}" for i in range(50)]).splitlines()
    assert len(lines) == 63
    assert "and 10 more nodes" in lines[60]
    assert "░█" in lines[0]
    assert "… 50 classes" in lines[-1]


@shells
def test_compare_by_rounds(shell: str, playground: Path) -> None:
    line = f"compare fedavg per-fedavg:local_steps=2 {DATA} --rounds 2 --seeds 3 --out both"
    text = succeed(line, shell)
    assert "first minus this" in text
    found = read("both/comparison.json")
    first, second = found["rows"]
    assert [first["label"], second["label"]] == ["fedavg", "per-fedavg:local_steps=2"]
    assert (first["rounds"], second["rounds"], first["n"]) == (2, 2, 3)
    for row in (first, second):
        values = [read(f"both/{place}/summary.json") for place in row["runs"]]
        assert row["values"] == [each["target_metric"]["1"]["mean"] for each in values]
        assert row["before"] == [each["target_metric"]["0"]["mean"] for each in values]
        assert row["mean"] == pytest.approx(np.mean(row["values"]))
        width = student_quantile(2) * np.std(row["values"], ddof=1) / np.sqrt(3)
        assert row["ci95"] == pytest.approx(width)
    differences = np.subtract(first["values"], second["values"])
    (paired,) = found["paired"]
    assert paired["against"] == second["label"]
    assert paired["mean"] == pytest.approx(differences.mean())
    assert paired["ci95"] == pytest.approx(4.3027 * differences.std(ddof=1) / 3**0.5, rel=1e-4)
    # The same seed is the same federation for all of them.
    digests = [
        [read(f"both/{p}/settings.json")["federation"] for p in r["runs"]] for r in (first, second)
    ]
    assert digests[0] == digests[1]
    assert len(set(digests[0])) == 3


def test_runs_of_a_comparison_are_runs(playground: Path) -> None:
    """They can be evaluated, adapted and gone on with like any other."""
    prior = "--set prior.model=run --set prior.strength=0.1"
    line = f"compare admm-fedmeta fedavg:local_steps=2 {DATA} {prior} --rounds 2 --seeds 2"
    succeed(f"{line} --out both")
    for row in read("both/comparison.json")["rows"]:
        folder = f"both/{row['runs'][1]}"  # of seed 1
        summary = read(f"{folder}/summary.json")
        assert read(f"{folder}/settings.json")["together"] == 2
        succeed(f"evaluate {folder} --out found.json")
        assert read("found.json")["target_metric"] == summary["target_metric"]
        target = summary["targets"][0]
        text = succeed(f"adapt {folder} --target {target['name']}")
        assert f"{100 * target['metric']['1']:.1f} %" in text
        succeed(f"train --resume {folder} --rounds 3")
        assert len(RunFolder(Path(folder)).history()) == 3


def test_compare_by_gradients(playground: Path) -> None:
    line = f"compare fedavg:local_steps=6 fedavg {DATA} --rounds 2 --seeds 1 --equal gradients"
    succeed(f"{line} --out both")
    many, one = read("both/comparison.json")["rows"]
    assert (many["rounds"], one["rounds"]) == (2, 12)
    assert many["gradient_evaluations"] == one["gradient_evaluations"] == 12
    assert many["ci95"] is None


def test_compare_counts_what_diverges(playground: Path) -> None:
    line = f"compare fedavg fedavg:step_size=1e30,local_steps=2 {DATA} --rounds 3 --seeds 2"
    text = succeed(f"{line} --out both")
    good, diverged = read("both/comparison.json")["rows"]
    assert (good["diverged"], diverged["diverged"]) == (0, 2)
    for place, value in zip(diverged["runs"], diverged["values"], strict=True):
        assert read(f"both/{place}/summary.json")["status"] == "diverged"
        seed = int(place[-1])  # what the device is left with: the initial model, not adapted
        succeed(f"train {DATA} --rounds 0 --seed {seed} --out start{seed}")
        assert value == read(f"start{seed}/summary.json")["target_metric"]["0"]["mean"]
    assert diverged["values"] == diverged["before"]
    assert text.count("fedavg:step_size=1e30") == 1


def test_compare_with_an_adaptation_that_diverges(playground: Path) -> None:
    """Even adapting the initial model diverges here: it still counts as one, not as an end."""
    line = f"compare fedavg {DATA} --model mlp --inner-step-size 1e38 --rounds 1 --seeds 1"
    succeed(f"{line} --out both")
    (row,) = read("both/comparison.json")["rows"]
    assert row["diverged"] == 1
    assert row["values"] == row["before"]


@shells
def test_tune_by_grid(shell: str, playground: Path) -> None:
    line = f"tune {DATA} --rounds 3 --seeds 3 --grid penalty=0.05,1e-30 --grid inner.steps=1,2"
    text = succeed(f"{line} --out search", shell)
    found = read("search/tuning.json")
    assert [trial["settings"] for trial in found["trials"]] == [
        {"penalty": p, "inner.steps": s} for p in (0.05, 1e-30) for s in (1, 2)
    ]
    assert [trial["diverged"] for trial in found["trials"]] == [0, 0, 3, 3]
    good = [trial for trial in found["trials"] if trial["mean"] is not None]
    assert found["best"] == max(good, key=lambda trial: trial["mean"])
    assert "best: --set algorithms.admm-fedmeta.penalty=0.05" in text
    assert text.count("diverged") == 2
    assert {p.name for p in Path("search/trials").iterdir()} >= {"000-seed0", "003-seed1"}


def test_tune_by_chance(playground: Path) -> None:
    line = f"tune {DATA} --rounds 1 --seeds 1 --range penalty=0.1..10 --trials 3"
    assert succeed(line) == succeed(line)  # seeded
    succeed(f"{line} --out search")
    penalties = [trial["settings"]["penalty"] for trial in read("search/tuning.json")["trials"]]
    assert len(set(penalties)) == 3
    assert all(0.1 <= penalty <= 10 for penalty in penalties)


def test_tune_never_looks_at_targets(playground: Path) -> None:
    """Other samples on the target nodes change nothing; other samples on sources do."""
    named = f"{DATA} --rounds 3 --seeds 2"
    line = ["tune", *named.split(), "--set", 'data.targets=["device-5"]']
    line += ["--set", "data.scaling=per-feature", "--grid", "penalty=0.1,0.3"]

    def result(name: str) -> Any:
        succeed([*line, "--out", name])
        return read(f"{name}/tuning.json")

    clean = result("clean")
    original = Path("data.csv").read_text()
    assert original.count("device-5") == 12

    def poison(device: str) -> None:
        lines = [
            f"1e6,-1e6,{'cab'[i % 3]},{device}" if line.endswith(device) else line
            for i, line in enumerate(original.splitlines())
        ]
        Path("data.csv").write_text("\n".join(lines) + "\n")

    poison("device-5")
    assert result("poisoned target") == clean
    poison("device-0")
    assert result("poisoned source") != clean


def test_own_code_by_name(playground: Path) -> None:
    own = "--model own.py:good --loss own.py:loss"
    succeed(f"train {DATA} {own} --rounds 2 --out mine")
    # The same network and loss as the built-in ones: the same run, by the same derivatives.
    succeed(f"train {DATA} --rounds 2 --set execution.derivatives=autograd --out plain")
    histories = [RunFolder(Path(name)).history() for name in ("mine", "plain")]
    assert [r["meta_loss"] for r in histories[0]] == [r["meta_loss"] for r in histories[1]]
    assert call("train --resume mine --rounds 3").code == 2  # not without being named again
    succeed(f"train --resume mine --rounds 3 {own}")


@shells
def test_own_code_is_named_again_the_same_way(shell: str, playground: Path) -> None:
    own = "--model own.py:good --loss own.py:loss"
    succeed(f"train {DATA} {own} --algorithm own.py:Own --rounds 2 --out mine", shell)
    summary = read("mine/summary.json")
    for line in ("evaluate mine", f"adapt mine --target {summary['targets'][0]['name']}"):
        assert "--model" in call(line, shell).complaint
        assert "--loss" in call(f"{line} --model own.py:good", shell).complaint
    succeed(f"evaluate mine {own} --out found.json", shell)  # the algorithm does not matter
    assert read("found.json")["target_metric"] == summary["target_metric"]
    succeed(f"adapt mine --data mine.csv {own} --out adapted.safetensors", shell)
    succeed(f"adapt adapted.safetensors --data mine.csv {own}", shell)
    assert "--algorithm own.py:Own" in call(f"train --resume mine -r 3 {own}", shell).complaint
    succeed(f"train --resume mine --rounds 3 {own} --algorithm own.py:Own", shell)


def test_own_code_in_double_precision(playground: Path) -> None:
    succeed(f"train {DATA} --model own.py:good --dtype float64 --rounds 2 --out mine")
    succeed("evaluate mine --model own.py:good --loss cross-entropy --out found.json")
    assert read("found.json")["target_metric"] == read("mine/summary.json")["target_metric"]


@pytest.mark.parametrize(
    "source",
    [
        "run",
        "run/model.safetensors",
        "run/checkpoints/round-000003",
        "run/checkpoints/round-000003/state.safetensors",
        "plain.safetensors",
    ],
)
def test_training_starts_where_it_is_told_to(source: str, playground: Path) -> None:
    before = MetaModel.load("run").theta
    safetensors.torch.save_file(before, "plain.safetensors")
    succeed(f"train {DATA} --rounds 0 --init {source} --out start")
    after = MetaModel.load("start").theta
    assert all(leaf.equal(after[name]) for name, leaf in before.items())
    Path("my.toml").write_text(f"init = '{source}'\n")
    succeed(f"train {DATA} --config my.toml --rounds 1 --out next")
    succeed("train --resume start --rounds 1")
    histories = [RunFolder(Path(name)).history() for name in ("start", "next")]
    assert histories[0][0]["meta_loss"] == histories[1][0]["meta_loss"]


# Settings: default < preset < file < flag < --set


def settings_of(*lines: str) -> Any:
    out = f"p{len(list(Path().glob('p*')))}"
    succeed(f"train {DATA} --rounds 0 {' '.join(lines)} --out {out}")
    return read(f"{out}/settings.json")["settings"]


def test_precedence(playground: Path) -> None:
    Path("my.toml").write_text(
        "preset = 'paper'\n[data]\npartition = 'column'\n"
        "[inner]\nstep_size = 0.02\nsteps = 3\n"
        "[algorithms.admm-fedmeta]\npenalty = 0.4\n[algorithms.fedavg]\nstep_size = 0.5\n"
    )
    default = settings_of()
    assert default["algorithm"]["penalty"] == "auto"
    assert default["algorithm"]["inner"]["scope"] == "head"
    assert default["algorithm"]["curvature"] == "exact"
    preset = settings_of("--preset paper --set data.partition=column")
    assert preset["algorithm"]["penalty"] == 0.7  # own data take those of CIFAR-10
    assert preset["algorithm"]["curvature"] == "finite-difference"
    file = settings_of("--config my.toml")
    assert file["algorithm"]["penalty"] == 0.4
    assert file["algorithm"]["curvature"] == "finite-difference"  # from the preset it names
    assert file["algorithm"]["inner"]["step_size"] == 0.02
    flag = settings_of("--config my.toml --penalty 0.5 --inner-step-size 0.03")
    assert flag["algorithm"]["penalty"] == 0.5
    assert flag["algorithm"]["inner"] == {**file["algorithm"]["inner"], "step_size": 0.03}
    last = settings_of(
        "--config my.toml --penalty 0.5 --set algorithms.admm-fedmeta.penalty=0.6 --preset authors"
    )
    assert last["algorithm"]["penalty"] == 0.6
    assert last["algorithm"]["platform"] == "proximal"  # a flag's preset beats the file's
    other = settings_of("--config my.toml --algorithm fedavg")
    assert other["algorithm"]["step_size"] == 0.5


def test_a_prior_and_its_strength(playground: Path) -> None:
    succeed(
        f"train {DATA} --rounds 3 --prior run --prior-strength 1e6 --out tied "
        "--penalty 0.3 --set algorithms.admm-fedmeta.platform=proximal"
    )
    prior, tied = MetaModel.load("run").theta, MetaModel.load("tied").theta
    for name, leaf in prior.items():
        assert leaf.allclose(tied[name], atol=1e-3)
    free = succeed(f"train {DATA} --rounds 3 --prior run --prior-strength 0 --out free")
    assert "finished" in free
    assert snapshot(Path("free"))["metrics.jsonl"]
    assert all(leaf.equal(MetaModel.load("free").theta[n]) for n, leaf in prior.items())


def test_a_comparison_gives_the_prior_to_those_that_take_one(playground: Path) -> None:
    prior = "--set prior.model=run --set prior.strength=1e6"
    settings = "admm-fedmeta:platform=proximal,penalty=3 fedavg"
    succeed(f"compare {settings} {DATA} {prior} --rounds 2 --seeds 1 --out tied")
    (tied,), (free,) = (row["runs"] for row in read("tied/comparison.json")["rows"])
    before = MetaModel.load("run").theta
    for name, leaf in MetaModel.load(f"tied/{tied}").theta.items():
        assert leaf.allclose(before[name], atol=1e-4)
    assert not all(
        leaf.allclose(before[name], atol=1e-4)
        for name, leaf in MetaModel.load(f"tied/{free}").theta.items()
    )


def test_adapt_to_classes_that_are_numbers_but_not_from_zero(playground: Path) -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(1, 4, 240)
    x = rng.normal(size=(240, 3)) + 4 * np.eye(3)[y - 1]
    lines = [
        f"{a},{b},{c},{label},u{i // 12}"
        for i, ((a, b, c), label) in enumerate(zip(x, y, strict=True))
    ]
    Path("fleet.csv").write_text("\n".join(["a,b,c,label,user", *lines]))
    Path("mine.csv").write_text(
        "\n".join(
            [
                "user,c,label,a,b",
                *(
                    f"me,{c},{label},{a},{b}"
                    for (a, b, c), label in zip(x[:40], y[:40], strict=True)
                ),
            ]
        )
    )
    succeed("train --data fleet.csv --node user --rounds 20 --out fleet")
    text = succeed("adapt fleet --data mine.csv --steps 20 --out mine.safetensors")
    assert "after 20 steps" in text
    adapted = MetaModel.load("mine.safetensors")
    assert adapted.task.class_names == ("1", "2", "3")
    right = [name == str(label) for name, label in zip(adapted.classify(x), y, strict=True)]
    assert np.mean(right) > 0.9

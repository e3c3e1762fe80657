"""`fedmeta diagnose`: what it says of runs inside and outside the theorem, and of bad input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import fedmeta
from cli.calling import call, succeed

BASE = "--data data.csv --node device --model linear --inner-step-size 0.05 --rounds 8"
PLAIN = f"{BASE} --set algorithms.admm-fedmeta.resplit=none --set execution.dtype=float64"


def diagnosed(options: str, more: str = "", shell: str = "typer") -> tuple[dict[str, Any], str]:
    """Train a run and diagnose it: what the file holds, and what was printed."""
    succeed(f"train {options} --out looked-at")
    printed = succeed(f"diagnose looked-at {more}", shell)
    return json.loads(Path("looked-at/diagnosis.json").read_text()), printed


def logged() -> list[dict[str, Any]]:
    lines = Path("looked-at/metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def statuses(found: dict[str, Any], printed: bool) -> dict[str, str]:
    return {v["name"]: v["status"] for v in found["verdicts"] if v["printed"] == printed}


@pytest.mark.usefixtures("playground")
def test_softmax_regression_with_a_large_penalty_lies_inside_the_theorem() -> None:
    found, printed = diagnosed(f"{PLAIN} --penalty 100")
    assert "The run lies inside the theorem" in printed
    assert found["inside_the_theorem"] is found["closed_form"] is True
    assert found["replay_off"] == 0
    derived = statuses(found, printed=False)
    for name in ("ρ/2 > 4wν", "a_p > 0", "ρ > 3wν", "stationarity (Theorem 1)"):
        assert derived[name] == "holds"
    assert derived["𝓛 falls in every round by Σ(a_e‖Δθ_i‖² + a_p‖Δθ‖²)"] == "holds"
    # Expected losses are not what a run knows, whatever is known of constants.
    assert derived["data size (Corollary 1)"] == "not contradicted"
    assert derived["adaptation (Theorem 2)"] == "not contradicted"
    rounds = found["along"]
    assert len(rounds) == 8
    for look in rounds[:-1]:
        assert look["change"] <= look["allowed"] < 0
    for look, record in zip(rounds, logged(), strict=True):
        for here, there in (
            ("gradient_norm", "gradient_norm"),
            ("primal", "primal_residual"),
            ("dual", "dual_residual"),
            ("objective", "meta_loss"),
        ):
            assert look[here] == pytest.approx(record[there], rel=1e-9)
    assert "Steps are not too long: the loss rose in 0 of 7 rounds" in printed
    page = Path("looked-at/diagnosis.html").read_text()
    assert page.count("<svg") == 5
    assert "The run lies inside the theorem" in page


@pytest.mark.usefixtures("playground")
def test_a_penalty_below_the_bound_is_named() -> None:
    found, printed = diagnosed(f"{PLAIN} --penalty 0.05")
    assert "ρ is too small (ρ/2 > 4wν, a_p > 0 and ρ > 3wν)" in printed
    assert not found["inside_the_theorem"]
    assert {"violated"} == {statuses(found, False)[n] for n in ("ρ/2 > 4wν", "a_p > 0", "ρ > 3wν")}
    # Nothing is promised there, so nothing is judged.
    assert not any(v["name"].startswith(("𝓛", "stationarity")) for v in found["verdicts"])
    assert all(node["penalty"] == 0.05 < node["least_derived"] for node in found["nodes"])


@pytest.mark.usefixtures("playground")
def test_an_automatic_penalty_is_outside_and_says_in_what() -> None:
    found, printed = diagnosed(BASE, shell="plain")
    assert "the penalty changes during the run" in found["departures"]
    assert "support and query sets are divided anew in every round" in found["departures"]
    assert "no fixed ρ: no 𝓛 and no residuals" in printed
    assert "violated" not in {v["status"] for v in found["verdicts"] if "ρ" in v["name"]}
    assert statuses(found, printed=False)["ρ > 3wν"] == "not covered"
    title, *plain, theory = printed.splitlines()[:5]
    assert title.startswith("admm-fedmeta on ")
    assert [line.split()[0] for line in plain][1:] == ["Steps", "Nothing"]
    assert "onverged: the loss after adaptation" in plain[0]
    assert theory == ("theory: Not covered by the theorem: the penalty changes during the run")
    assert {look["lagrangian"] for look in found["along"]} == {None}
    assert all(node["penalty"] > 0 for node in found["nodes"])
    assert all(look["gradient_norm"] > 0 for look in found["along"])


@pytest.mark.usefixtures("playground")
def test_a_network_is_estimated_and_its_layers_are_named() -> None:
    options = f"{PLAIN} --penalty 1000 --set model.activation=relu".replace("linear", "mlp")
    options += " --set model.hidden=[3] --curvature finite-difference"
    found, printed = diagnosed(options, "--nodes 2")
    assert not found["closed_form"]
    assert "holds" not in {v["status"] for v in found["verdicts"]}
    assert "layer '2' (ReLU) breaks the gradient" in printed
    assert "δ is not summable: Σ 1/(10t + 100)^1 is infinite" in printed
    errors = [b for b in found["bounds"] if b["name"] == "difference error"]
    assert [b["printed"] for b in errors] == [False, True]
    assert len(found["nodes"]) == 2
    assert "constants of 2 of 5 sources; sums over nodes are their means" in found["notes"]
    again = call("diagnose looked-at --nodes 2")
    assert again.out == printed
    assert "constants: round 6/6" in again.err  # nobody waits in silence


@pytest.mark.usefixtures("playground")
def test_a_prior_has_its_forgetting_judged() -> None:
    found, _ = diagnosed(f"{PLAIN} --penalty 100 --prior run --prior-strength 0.5")
    kept = {b["name"]: b for b in found["bounds"] if not b["printed"]}
    for name in ("forgetting: divergence by distance", "forgetting: divergence"):
        assert kept[name]["status"] == "holds"
        assert 0 < kept[name]["left"] <= kept[name]["right"]


@pytest.mark.usefixtures("playground")
def test_lost_uploads_and_squared_errors_are_departures() -> None:
    options = "--data waves.csv --node device --label y --set data.task=regression "
    options += "--model linear --penalty 50 --rounds 4"
    found, printed = diagnosed(f"{options} --set participation.lost=0.3", "--every 3")
    assert [look["round"] for look in found["along"]] == [1, 4]
    assert "not all nodes are counted in every round" in found["departures"]
    assert any("no β holds for every θ" in line for line in found["departures"])
    assert "nodes that are not counted have no θ_i" in printed
    assert {look["lagrangian"] for look in found["along"]} == {None}


BAD = {
    "nowhere": "there is no run folder nowhere",
    ".": "holds no run",
    "run --every 0": "every is 0: give a whole number of at least 1",
    "run --nodes 0": "nodes is 0",
    "run --target nobody": "there is no node 'nobody' in",
    "run --memory 1e-6": "the memory budget of",
    "run --device tpu": "tpu",
}


@pytest.mark.usefixtures("playground")
@pytest.mark.parametrize("line", BAD)
def test_bad_input_is_one_line(line: str) -> None:
    outcome = call(f"diagnose {line}")
    assert outcome.code == 2
    assert BAD[line] in outcome.complaint
    assert not Path("run/diagnosis.json").exists()


def test_runs_that_cannot_be_diagnosed(playground: Path) -> None:
    succeed(f"train {BASE} --algorithm fedavg --out averaged")
    assert "the theory is about admm-fedmeta" in call("diagnose averaged").complaint
    succeed(f"train {BASE} --rounds 0 --out untrained")
    assert "no rounds to look at" in call("diagnose untrained").complaint
    (playground / "other" / "settings.json").write_text('{"format": 1, "settings": 3}')
    assert "settings.json is damaged" in call("diagnose other").complaint
    metrics = playground / "run" / "metrics.jsonl"
    metrics.write_text("{}\n" + metrics.read_text().replace('"round"', '"rou'))
    assert "is damaged" in call("diagnose run").complaint
    federation = fedmeta.load(fedmeta.DataSettings("sinusoid", nodes=6), seed=0)
    training = fedmeta.TrainingSettings(rounds=1)
    model = fedmeta.ModelSettings("linear")
    fedmeta.train(federation, model, fedmeta.ADMMFedMeta(), training, folder="from-python")
    assert "was started from Python" in call("diagnose from-python").complaint


def test_changed_data_are_refused(playground: Path) -> None:
    table = playground / "data.csv"
    table.write_text(table.read_text().replace("device-1", "device-9", 1))
    assert "have changed" in call("diagnose run").complaint

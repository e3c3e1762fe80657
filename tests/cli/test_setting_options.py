"""What flags, settings file and preset add up to."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from cli.calling import SHELLS, call, succeed
from fedmeta.cli import setting_options as options
from fedmeta.cli import train
from fedmeta.core.errors import SettingError

FLAT = {"flip": False, "shift": 0}
SMALL = "--data digits --nodes 8 --model linear --set data.samples=[6,8] "


def test_a_switch_that_is_not_given_sets_nothing(tmp_path: Path) -> None:
    file = tmp_path / "my.toml"
    file.write_text("[augmentation]\nflip = true\nshift = 2\n")
    nothing = {each.name: False if each.kind is bool else None for each in train.PARAMETERS}
    given = {**nothing, "config": str(file)}
    assert options.settings_table(train.PARAMETERS, nothing) == {}
    table = options.settings_table(train.PARAMETERS, given)
    assert table["augmentation"] == {"flip": True, "shift": 2}
    table = options.settings_table(train.PARAMETERS, {**nothing, "flip": True, "shift": 0})
    assert table == {"augmentation": {"flip": True, "shift": 0}}
    off = {**given, "set": ("augmentation.flip=false",)}
    assert options.settings_table(train.PARAMETERS, off)["augmentation"]["flip"] is False


@pytest.mark.parametrize("shell", SHELLS)
def test_flags_reach_the_run(shell: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = succeed(f"train {SMALL} --rounds 2 --precise 40 --shift 1 --out run", shell)
    assert "precise" in text
    summary = json.loads(Path("run/summary.json").read_text())
    assert summary["settings"]["augmentation"] == FLAT | {"shift": 1}
    assert summary["settings"]["data"]["precise"] == 40
    assert [row["precise"] for row in summary["targets"]] == [40, 40]
    succeed(f"train {SMALL} --rounds 1 --flip --out other", shell)
    other = json.loads(Path("other/summary.json").read_text())
    assert other["settings"]["augmentation"] == FLAT | {"flip": True}
    assert other["precise_metric"] == {}
    # A run goes on with what it was started with, and nothing else.
    succeed("train --resume run --rounds 3", shell)
    outcome = call("train --resume run --rounds 4 --flip", shell)
    assert (outcome.code, "augmentation.flip was False and is now True" in outcome.err) == (2, True)
    outcome = call("train --resume run --rounds 4 --precise 30", shell)
    assert outcome.code == 2
    assert "have changed" in outcome.err
    succeed("report run", shell)


def test_evaluate_draws_precise_sets_for_the_own_targets_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, precise in (("with", 40), ("without", 0)):
        succeed(f"train {SMALL} --rounds 2 --precise {precise} --out {name}")
        succeed(f"evaluate {name} --out {name}/own.json")
        assert "precise" in succeed(f"evaluate {name} --precise 40 --out {name}/drawn.json")
    drawn = [json.loads(Path(f"{name}/drawn.json").read_text()) for name in ("with", "without")]
    summary = json.loads(Path("with/summary.json").read_text())
    for each in (*drawn, json.loads(Path("with/own.json").read_text())):
        assert each["precise_metric"] == summary["precise_metric"] != {}
        assert each["targets"] == summary["targets"]
    assert json.loads(Path("without/own.json").read_text())["precise_metric"] == {}
    outcome = call("evaluate with --precise 40 --seed 3")
    assert (outcome.code, "drawing nodes of digits anew" in outcome.err) == (2, True)


def test_compare_prints_precise_sets_beside_query_sets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "250")
    command = f"compare fedavg reptile {SMALL} --rounds 1 --seeds 2 "
    plain = succeed(f"{command} --out plain")
    text = succeed(f"{command} --precise 40 --out precise")
    assert "first minus this, precise" in text
    assert "precise" not in plain.replace("--precise", "")


def test_flags_are_read_off_the_fields_that_they_set() -> None:
    memory = options.option("execution.memory")
    assert (memory.flag, memory.kind, memory.default, memory.toml) == (
        "--memory",
        float,
        None,
        False,
    )
    assert memory.help.startswith("Budget for data")
    scope = options.option("inner.scope", flag="inner_scope")
    assert (scope.flag, scope.kind, scope.default, scope.toml) == (
        "--inner-scope",
        str,
        "head",
        True,
    )
    assert options.option("uplink.guard.outliers").default == "keep"
    assert options.option("algorithms.{algorithm}.step_size").default == "0.1"
    assert options.option("augmentation.flip").kind is bool
    for each in train.PARAMETERS:
        assert each.setting is None or re.fullmatch(r".*\w.*\.", each.help), each


def test_assignments() -> None:
    assert options.parse_assignment("augmentation.shift=2") == ("augmentation.shift", 2)
    with pytest.raises(SettingError, match="not an assignment"):
        options.parse_assignment("augmentation.shift")

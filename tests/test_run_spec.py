"""The description of a run: every field survives dictionaries and TOML, and reaches the page."""

from __future__ import annotations

import html
import tomllib
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
import torch

import fedmeta
from fedmeta.algorithms import ALGORITHMS
from fedmeta.config.spec import TABLES, RunSpec
from fedmeta.config.toml_files import merged, to_toml
from fedmeta.core import secret_random
from fedmeta.core.errors import SettingError
from fedmeta.core.run_folder import RunFolder
from fedmeta.report import repeat, write_report

SMALL: dict[str, Any] = {
    "data": {"name": "digits", "nodes": 6, "samples": [6, 8]},
    "model": {"hidden": [4]},
    "training": {"rounds": 2, "evaluate_every": 0},
    "execution": {"threads": 1},
}
CASES: dict[str, list[tuple[dict[str, Any], str]]] = {
    "data": [
        ({"data": {"classes_per_node": 3}}, "classes per node"),
        ({"data": {"scaling": "none", "precise": 9}}, "precise"),
    ],
    "model": [({"model": {"activation": "elu"}}, "elu"), ({"model": {"hidden": [3, 5]}}, "3, 5")],
    "algorithm": [
        ({"algorithm": "fedavg", "algorithms": {"fedavg": {"local_steps": 3}}}, "local steps"),
        ({"algorithms": {"admm-fedmeta": {"penalty": 7.25}}}, "7.25"),
        ({"inner": {"step_size": 0.125, "steps": 2, "scope": "all"}}, "0.125"),
        ({"algorithms": {"admm-fedmeta": {"extrapolate": False}}}, "extrapolate"),
        ({"algorithms": {"admm-fedmeta": {"local_steps": 3, "duals": False}}}, "duals"),
        ({"algorithm": "fedavg", "algorithms": {"fedavg": {"server": "yogi"}}}, "yogi"),
        (
            {"algorithms": {"admm-fedmeta": {"server": {"longest_step": 0.0175}}}},
            "longest_step=0.0175",
        ),
    ],
    "training": [({"training": {"seed": 41}}, "41"), ({"training": {"rounds": 3}}, "3")],
    "execution": [({"execution": {"dtype": "float64", "path": "loop"}}, "float64")],
    "participation": [({"participation": {"fraction": 0.75}}, "0.75")],
    "augmentation": [({"augmentation": {"flip": True, "shift": 2}}, "flip")],
    "uplink": [
        ({"uplink": {"compression": {"method": "top-k", "keep": 0.375}}}, "0.375"),
        ({"uplink": {"guard": {"outliers": "clip", "factor": 1.625}}}, "1.625"),
        (
            {
                "uplink": {"privacy": {"dp": "local", "noise": 0.0625}},
                "algorithms": {"admm-fedmeta": {"penalty": 7.25}},
            },
            "0.0625",
        ),
    ],
    "prior": [({"prior": {"model": "{earlier}", "strength": 0.1875}}, "0.1875")],
    "loss": [({"loss": "cross-entropy"}, "cross-entropy")],
    "start": [({"init": "{earlier}"}, "{earlier}")],
    "importance": [({"importance": "fisher"}, "fisher"), ({"importance": "path"}, "path")],
}


def cases() -> Iterator[tuple[str, dict[str, Any], str]]:
    for name, some in CASES.items():
        for table, shown in some:
            yield name, table, shown


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run to start from, or to be tied to."""
    pytest.importorskip("sklearn", reason="scikit-learn, which holds the digits, is not installed")
    folder = tmp_path_factory.mktemp("earlier") / "run"
    fedmeta.train_spec(RunSpec.from_dict(SMALL), folder=folder)
    return folder


def placed(value: Any, earlier: Path) -> Any:
    if isinstance(value, dict):
        return {key: placed(each, earlier) for key, each in value.items()}
    return value.replace("{earlier}", str(earlier)) if isinstance(value, str) else value


def test_every_field_has_a_case() -> None:
    assert set(CASES) == {each.name for each in fields(RunSpec)}


@pytest.mark.parametrize(("name", "change", "shown"), list(cases()))
def test_what_is_not_a_default_is_kept_shown_and_repeated(
    name: str,
    change: dict[str, Any],
    shown: str,
    earlier: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(secret_random, "fresh_key", lambda: bytes(32))  # noise is another else
    pytest.importorskip("matplotlib", reason="the extra report is not installed")
    spec = RunSpec.from_dict(merged([SMALL, placed(change, earlier)]))
    default = next(each.default for each in fields(RunSpec) if each.name == name)
    assert getattr(spec, name) != default
    # To a dictionary and to TOML, and back.
    again = RunSpec.from_dict(tomllib.loads(to_toml(spec.to_dict())))
    assert again.to_dict() == spec.to_dict() == RunSpec.from_dict(spec.to_dict()).to_dict()
    if spec.prior.model is None:
        assert again == spec
    # On the page of the run, where the code makes the same run, bit for bit.
    run = fedmeta.train_spec(spec, folder=tmp_path / "run")
    page = html.unescape(write_report(tmp_path / "run").read_text("utf-8"))
    assert placed(shown, earlier) in page
    stored = RunFolder.open(tmp_path / "run").settings()
    code = repeat.code(stored["settings"], stored["spec"])
    assert code in page
    assert ("drawn anew" in page) == ("privacy" in change.get("uplink", {}))
    names: dict[str, Any] = {}
    exec(code.replace("fm.train(", "again = fm.train("), names)
    repeated = names["again"]
    mine, theirs = run.meta_model.theta, repeated.meta_model.theta
    assert all(torch.equal(mine[each], theirs[each]) for each in mine)
    keep = [{k: v for k, v in each.items() if k != "seconds"} for each in run.history]
    assert keep == [{k: v for k, v in each.items() if k != "seconds"} for each in repeated.history]


def other(value: Any, kind: Any) -> Any:
    """Some other value of a type; None if there is no obvious one."""
    if get_origin(kind) is Literal:
        return next((each for each in get_args(kind) if each != value), None)
    choices = [each for each in get_args(kind) if each is not type(None)]
    if choices and get_origin(kind) is not tuple:
        return next((found for each in choices if (found := other(value, each)) is not None), None)
    if kind is bool:
        return not value
    if kind is int:
        return (value or 1) + 1
    if kind is float:
        return (value or 0.25) * 0.5 if not isinstance(value, str) else 0.5
    return None


def leaves() -> Iterator[tuple[str, type, str]]:
    owners = {**TABLES, **{f"algorithms.{name}": cls for name, cls in ALGORITHMS.items()}}
    for place, cls in owners.items():
        for each in fields(cls):
            if each.init and each.compare:
                yield place, cls, each.name


@pytest.mark.parametrize(("place", "cls", "name"), list(leaves()))
def test_every_setting_survives(place: str, cls: type, name: str) -> None:
    """A field of a table that somebody adds later is looked at here without another word."""
    field = next(each for each in fields(cls) if each.name == name)
    default = field.default if field.default is not MISSING else None
    fixed = {"penalty": 2.0} if cls is fedmeta.ADMMFedMeta and name != "penalty" else {}
    try:
        if is_dataclass(default):
            inner = fields(default)[0]
            value = other(getattr(default, inner.name), get_type_hints(type(default))[inner.name])
            changed: Any = None if value is None else replace(default, **{inner.name: value})
        else:
            changed = other(default, get_type_hints(cls)[name])
        settings = None if changed is None else cls(**{**fixed, name: changed})
    except (SettingError, TypeError) as error:
        pytest.skip(f"not by itself: {error}")
    if settings is None:
        pytest.skip("no other value is obvious")
    owner = "algorithm" if place.startswith("algorithms") else place
    spec = RunSpec(**{owner: settings})
    if spec.prior.model is not None:
        pytest.skip("a prior is read from a file")
    try:
        again = RunSpec.from_dict(tomllib.loads(to_toml(spec.to_dict())))
    except SettingError as error:
        pytest.skip(f"not without another setting: {error}")
    assert getattr(again, owner) == settings
    assert name in to_toml(spec.to_dict())


def test_what_no_table_can_hold_is_described(earlier: Path) -> None:
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    theta = fedmeta.Run.load(earlier).meta_model.theta
    assert "own" in RunSpec(data=None).to_dict()["data"]
    table = RunSpec(model=network, start=theta).to_dict()
    assert table["model"] == {"class": "torch.nn.modules.container:Sequential"}
    assert table["start"] == "4 tensors of your own"
    with pytest.raises(SettingError, match="model has no setting 'class'"):
        RunSpec.from_dict(table)

"""`fedmeta calibrate`: counts of nodes that models have not seen, in the run's own model file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.calling import call, succeed
from fedmeta import MetaModel
from fedmeta.core.manifest import check_listed

DIGITS = "train --data digits --nodes 12 --model linear --rounds 2"


@pytest.mark.usefixtures("playground")
def test_a_promise_is_made_once_nodes_have_counted_that_a_model_has_not_seen() -> None:
    succeed(f"{DIGITS} --out mine")
    assert "nothing is promised before `fedmeta calibrate`" in succeed("evaluate mine --out a.json")
    before = MetaModel.load("mine")
    shown = succeed("calibrate mine --folds 3")
    assert "training 3 models as mine was" in shown
    assert "answers 90.0 %" in shown
    after = MetaModel.load("mine")
    check_listed(Path("mine/model.safetensors"))
    assert before.calibration is not None
    assert after.calibration is not None
    assert (before.calibration.folds, after.calibration.folds) == (0, 3)
    assert after.calibration.samples == before.calibration.samples
    assert after.calibration != before.calibration
    assert all(leaf.equal(after.theta[name]) for name, leaf in before.theta.items())
    assert after.about == before.about
    assert "promised: answers 90.0 %" in succeed("evaluate mine --out b.json")
    first, second = (json.loads(Path(f"{name}.json").read_text()) for name in "ab")
    assert first["abstaining"]["promised"] is None
    assert second["abstaining"]["kept"] in (True, False)
    assert first["target_metric"] == second["target_metric"]
    succeed("calibrate mine --folds 3")
    assert MetaModel.load("mine").calibration == after.calibration
    assert "flatter" not in succeed("export mine --format c --out code")
    assert "has not seen" in Path("code/model.h").read_text()
    assert "count on others: fedmeta calibrate RUN --decide" in succeed(
        "export mine --format c --decide 5 --out code"
    )


@pytest.mark.usefixtures("playground")
def test_devices_that_decide_have_a_calibration_of_their_own() -> None:
    succeed(f"{DIGITS} --out mine")
    assert "samples of nodes that decide how to adapt" in succeed("calibrate mine --decide")
    found = MetaModel.load("mine").calibration
    assert found is not None
    assert found.decides
    assert found.folds == 5
    assert "(of nodes that decide how to adapt)" in succeed("evaluate mine")
    assert "note" not in succeed("export mine --format c --decide 5 --out code")
    assert "counted on nodes that decide" in succeed("export mine --format c --out code")


@pytest.mark.usefixtures("playground")
def test_what_cannot_be_calibrated_is_told_in_one_line() -> None:
    succeed(f"{DIGITS} --out mine")
    assert "cannot be divided into 99 folds" in call("calibrate mine --folds 99").complaint
    assert "folds is 1" in call("calibrate mine --folds 1").complaint
    assert "flatter" in succeed("export mine --format c --out code")
    assert "was trained on, which flatter it" in Path("code/model.h").read_text()
    succeed("train --data sinusoid --nodes 6 --model linear --rounds 1 --out values")
    assert "nothing to calibrate" in call("calibrate values").complaint
    assert "there is no run folder" in call("calibrate nowhere").complaint

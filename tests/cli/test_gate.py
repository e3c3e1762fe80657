"""`fedmeta gate`: exit codes, the file it writes, and bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.calling import call, succeed

DIGITS = "train --data digits --nodes 20 --model linear"


@pytest.mark.usefixtures("playground")
def test_an_untrained_candidate_is_blocked_and_the_model_itself_passes() -> None:
    succeed(f"{DIGITS} --rounds 20 --out old")
    # No steps and no adaptation to speak of: as good as untrained.
    succeed(f"{DIGITS} --rounds 1 --inner-step-size 1e-6 --out new")
    same = succeed("gate old --against old")
    assert "passed: old falls by 0.0 ± 0.0 points" in same
    outcome = call("gate new --against old --tasks old --out gate.json")
    assert outcome.code == 4
    assert outcome.complaint.startswith("blocked: old falls by ")
    found = json.loads(Path("gate.json").read_text())
    assert found["blocked"] is True
    assert found["verdicts"][0]["line"] in outcome.out
    assert call("gate new --against old --limit 100", "plain").code == 0


@pytest.mark.usefixtures("playground")
def test_bad_input_is_one_line() -> None:
    assert "--against RUN" in call("gate run").complaint
    assert "limit is -1" in call("gate run --against run --limit -1").complaint
    assert "too few to speak for it" in call("gate run --against run").complaint
    assert call("gate run --against nowhere").code == 2

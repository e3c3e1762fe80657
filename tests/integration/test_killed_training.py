"""A run that is killed at random moments ends as one that was left alone, to the last bit.

FEDMETA_KILLS sets how often it is killed in the long version.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("killed_training.py")


def check(folder: Path, kills: int) -> None:
    done = subprocess.run(
        [sys.executable, SCRIPT, folder, str(kills), "1"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    hits = result.pop("hits")
    assert hits >= kills // 2, "most kills must hit a living process, or nothing was shown"
    assert all(result.values()), result


def test_killed_four_times(tmp_path: Path) -> None:
    check(tmp_path, 4)


@pytest.mark.slow
def test_killed_fifty_times(tmp_path: Path) -> None:
    check(tmp_path, int(os.environ.get("FEDMETA_KILLS", "50")))

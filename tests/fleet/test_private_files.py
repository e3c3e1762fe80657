"""What a fleet writes is its owner's alone, whatever the umask."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from fedmeta.config.spec import RunSpec
from fedmeta.data import load
from fedmeta.fleet import flower_commands as programs
from fedmeta.fleet.local_fleet import make_keys, new_plan, write_shards
from fedmeta.fleet.plan import carry_out, edges_folder
from fedmeta.fleet.transport import FleetSettings
from fleet.test_in_process import table_of
from fleet.transports import InProcessTransport


def open_to_others(folder: Path) -> list[str]:
    """What others could reach below a folder: all on the way to it must let them."""
    found = []
    for place, folders, files in os.walk(folder):
        if Path(place).stat().st_mode & 0o077 == 0:
            folders.clear()
            continue
        found += [name for name in files if (Path(place) / name).stat().st_mode & 0o077]
    return sorted(found)


def test_shards_states_and_plans_are_private(tmp_path: Path) -> None:
    table, folder = table_of(rounds=2), tmp_path / "run"
    place, before = edges_folder(folder), os.umask(0o000)
    try:
        settings = RunSpec.from_dict(table)
        federation = load(settings.data_settings, 0)
        targets = write_shards(place, federation, 2)
        make_keys(place / "certs", 2)
        new_plan(folder, table, FleetSettings(deadline=0.2), targets)
        homes = {100 + n: home for n, home in enumerate(sorted(place.glob("edge-*")))}
        carry_out(folder, InProcessTransport(homes))
    finally:
        os.umask(before)
    for private in (place, folder / "fleet", *homes.values(), *place.glob("edge-*/memory/*")):
        assert private.stat().st_mode & 0o777 == 0o700, private
    assert open_to_others(place) == []
    secret = [*place.rglob("*.safetensors"), *place.rglob("edge.json"), *place.rglob("*.key")]
    assert len(secret) > 6
    assert all(file.stat().st_mode & 0o777 == 0o600 for file in secret)


def test_what_programs_write_is_private(tmp_path: Path) -> None:
    """Flower's database, its logs and the apps it keeps."""
    script = f"open({str(tmp_path / 'home/made.db')!r}, 'w').close()"
    before = os.umask(0o000)
    try:
        log = tmp_path / "home/log"
        with programs.running([sys.executable, "-c", script], tmp_path / "flower", log) as process:
            process.wait(60)
    finally:
        os.umask(before)
    assert (tmp_path / "home/made.db").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "home").stat().st_mode & 0o777 == 0o700


def test_a_program_that_ends_is_started_again(tmp_path: Path) -> None:
    """As a SuperNode that is refused while Flower takes it for online."""
    count = tmp_path / "count"
    script = f"open({str(count)!r}, 'a').write('x')"
    with programs.kept_running(
        lambda: [sys.executable, "-c", script], tmp_path / "flower", tmp_path / "log"
    ):
        subprocess.run(
            ["sh", "-c", f"until [ $(wc -c < {count} || echo 0) -ge 2 ]; do sleep 0.1; done"],
            check=True,
            timeout=120,
            stderr=subprocess.DEVNULL,
        )
    seen = count.read_text()
    assert len(seen) >= 2

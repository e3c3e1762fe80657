"""`fedmeta data get NAME`: bring a public data set here."""

from __future__ import annotations

import io
import os
import re
import sys
import time
from pathlib import Path

import numpy as np

from fedmeta.cli.command import Values
from fedmeta.cli.console import say
from fedmeta.cli.setting_options import parse_assignment
from fedmeta.core.errors import SettingError
from fedmeta.core.storage import write_bytes, writing
from fedmeta.data.download import fetch
from fedmeta.data.readers.huggingface import read_huggingface

HUB = "huggingface:"


def get(values: Values) -> None:
    """Bring a public data set here and say how to use it."""
    if values["get"][0] != "get" or len(values["get"]) != 2:
        raise SettingError(
            f"{' '.join(values['get'])!r} is not understood",
            "write fedmeta data FILE, or fedmeta data get NAME",
        )
    name = str(values["get"][1])
    if name.startswith(HUB):
        _get_from_hub(name.removeprefix(HUB), values)
        return
    folder = Path(values["folder"] or os.environ.get("FEDMETA_DATA") or "data")
    fetched = fetch(name, folder, _Progress(name).told)
    say(f"{name} {'is now' if fetched else 'was already'} in {folder}")
    say(f"use it:  fedmeta data --data {name} --folder {folder}")


def _get_from_hub(name: str, values: Values) -> None:
    kind, _, text = (values["partitioner"] or "").partition(":")
    own = [each for each in re.split(r",(?![^\[]*\])", text) if each]  # commas in lists are theirs
    arrays = read_huggingface(
        name,
        split=values["split"] or "train",
        label=values["label"],
        partitioner=kind or None,
        options=dict(parse_assignment(each) for each in own),
    )
    path = Path(values["out"] or f"{name.rstrip('/').rpartition('/')[2]}.npz")
    content = io.BytesIO()
    np.savez_compressed(content, allow_pickle=False, **arrays)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, content.getvalue())
    nodes = f" of {len(np.unique(arrays['node']))} nodes" if "node" in arrays else ""
    say(f"{len(arrays['y'])} samples{nodes} of shape {arrays['x'].shape[1:]} written to {path}")
    say(f"use it:  fedmeta data --data {path}{' --node node' if nodes else ''}")


class _Progress:
    """A line on standard error now and then."""

    def __init__(self, name: str) -> None:
        self._name, self._last = name, time.monotonic()

    def told(self, done: int, wanted: int | None) -> None:
        if time.monotonic() - self._last > 2:
            self._last = time.monotonic()
            of = f" of {wanted / 1e6:.0f}" if wanted else ""
            print(f"{self._name}: {done / 1e6:.0f}{of} MB", file=sys.stderr, flush=True)

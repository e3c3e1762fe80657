"""What this program runs with, without loading any of it."""

from __future__ import annotations

import platform
import sys
from importlib import import_module, metadata


def versions_line() -> str:
    """The versions in one line, for --version."""
    return "  ".join(f"{name} {number}" for name, number in versions().items())


def versions() -> dict[str, str]:
    """What a run was made with."""
    try:
        own = metadata.version("fedmeta")
    except metadata.PackageNotFoundError:  # run from a source tree with PYTHONPATH=src
        own = "source"
    return {
        "fedmeta": own,
        "python": platform.python_version(),
        **{name: _number(name) for name in ("torch", "numpy", "safetensors")},
        "machine": f"{platform.system()} {platform.machine()}",
    }


def _number(name: str) -> str:
    """The version of a library: its own word if it is loaded, else its installer's."""
    if name not in sys.modules:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:  # put there by hand
            import_module(name)
    return str(sys.modules[name].__version__)

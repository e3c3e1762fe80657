"""Objects named by the user as `file.py:name` or `package.module:name`."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

from fedmeta.errors import SettingError


def names_code(name: str) -> bool:
    """Whether a name points at code rather than at something built in."""
    return ":" in name


def load_object(name: str, what: str) -> Any:
    """Import the object a user named. Only ever called with a name the user typed.

    Args:
        name: "file.py:name" or "package.module:name".
        what: what it is for, used in messages ("model", "algorithm", "loss").

    Example:
        >>> load_object("math:sqrt", "loss")(4.0)
        2.0
    """
    module_name, _, attribute = name.rpartition(":")
    path = Path(module_name)
    try:
        if path.suffix == ".py":
            # Under a name of its own, so that a user's random.py hides nobody else's.
            spec = importlib.util.spec_from_file_location(f"fedmeta_user_{path.stem}", path)
            if spec is None or spec.loader is None or not path.is_file():
                raise SettingError(f"{what} file {module_name} does not exist", "check the path")
            module = importlib.util.module_from_spec(spec)
            sys.modules[spec.name] = module  # dataclasses look their module up there
            spec.loader.exec_module(module)
        else:
            module = importlib.import_module(module_name)
    except SettingError:
        raise
    except Exception as error:  # whatever the user's own code raises
        raise SettingError(
            f"importing {what} {name} failed ({type(error).__name__}: {error})",
            "mend that file, or check the name",
        ) from error
    if not hasattr(module, attribute):
        raise SettingError(f"{module_name} has no {attribute!r}", f"name the {what} it defines")
    return getattr(module, attribute)

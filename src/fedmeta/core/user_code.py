"""Objects named by the user as `file.py:name` or `package.module:name`.

Code runs because somebody typed its name, never because a file in a run folder has it; and no
address is asked for that reason either. So what is read from there passes `refuse_code` before
anything is built from it.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedmeta.core.errors import FedmetaError, RunFolderError, SettingError

_CODE = {
    "--algorithm": ("algorithm",),
    "--model": ("model", "name"),
    "--backbone": ("model", "backbone"),
    "--loss": ("loss",),
    "--prior-kind": ("prior", "kind"),
    "--prior": ("prior", "model"),
}
"""Settings that may name code, or an address to ask, by the flag that gives them."""


def names_code(name: str) -> bool:
    """The same of a setting that may also be a path, which can have a colon in it.

    An address is one whatever folders there are: "http://here" is also a path.

    Example:
        >>> names_code("teacher.py:load"), names_code("https://here/predict"), names_code("runs/a")
        (True, True, False)
    """
    return "://" in name or (is_code_name(name) and not Path(name).exists())


BACKBONE_LIBRARIES = ("efficientnet-lite", "timm", "torchvision", "transformers")
"""Before the colon of a backbone's name these stand for what is installed, not for code."""


def is_code_name(name: str) -> bool:
    """Whether a name points at code rather than at something built in."""
    return ":" in name


def is_backbone_code(name: str) -> bool:
    """Whether a backbone's name points at code of the user's own, not at a library's network.

    Example:
        >>> is_backbone_code("timm:resnet18"), is_backbone_code("mine.py:make")
        (False, True)
    """
    return is_code_name(name) and name.partition(":")[0] not in BACKBONE_LIBRARIES


def is_elsewhere(name: str) -> bool:
    """Whether a backbone is code, or of a hub or folder where anybody may have put anything.

    Example:
        >>> [is_elsewhere(name) for name in ("timm:resnet18", "transformers:a/b", "mine.py:make")]
        [False, True, True]
    """
    return is_backbone_code(name) or name.startswith("transformers:")


_READS = {"--backbone": is_elsewhere, "--prior": names_code}
"""How it is told that these flags name code; of all others a colon does."""


def refuse_code(
    table: Mapping[str, Any], typed: Mapping[str, Any], folder: Path, flag: str = "{flag} {name}"
) -> None:
    """Refuse settings that a run folder holds if they name code that was not typed again.

    Args:
        table: the settings.
        typed: those that were given now.
        folder: where they were found.
        flag: how to type a name, for the message.
    """
    for option, place in _CODE.items():
        name = _at(table, place)
        is_code = _READS.get(option, is_code_name)
        if is_code(name) and name != _at(typed, place):
            shown = re.sub(r"^fleet_app\.own_(\w+):", r"\1.py:", name)  # as fleets ship it
            again = flag.format(flag=option, setting=".".join(place), name=shown)
            what, done = "code of your own", "run"
            if "://" in name:
                what, done = "an address", "asked"
            elif option == "--backbone" and not is_backbone_code(name):
                what, done = "a repository or folder", "looked at"
            raise RunFolderError(
                f"{folder} names {what} ({shown}), which is not {done} unless you say so",
                f"name it again: {again}",
            )


def _at(table: Mapping[str, Any], place: tuple[str, ...]) -> str:
    """The text at a place of a nested table; empty if there is none."""
    value: Any = table
    for key in place:
        value = value.get(key, "") if isinstance(value, Mapping) else ""
    return value if isinstance(value, str) else ""


@contextmanager
def explained(problem: str, remedy: str, kind: type[FedmetaError] = SettingError) -> Iterator[None]:
    """Turn whatever a user's own code raises into one line; errors of that kind pass as they are.

    Args:
        problem: what was tried, for the message.
        remedy: what to do about it.
        kind: of the error.
    """
    try:
        yield
    except kind:
        raise
    except Exception as error:
        raise kind(f"{problem} ({type(error).__name__}: {error})", remedy) from error


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
    with explained(f"importing {what} {name} failed", "mend that file, or check the name"):
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
    if not hasattr(module, attribute):
        raise SettingError(f"{module_name} has no {attribute!r}", f"name the {what} it defines")
    return getattr(module, attribute)

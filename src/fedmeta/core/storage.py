"""Files that are whole or absent: atomic writes, and reads that say what is wrong.

Tensors are stored as safetensors, everything else as JSON. Nothing is ever unpickled.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from fedmeta.core.errors import RunFolderError
from fedmeta.core.input_files import read_regular
from fedmeta.core.manifest import FILE as MANIFEST
from fedmeta.core.manifest import UNLISTED, check_listed, digest, listed, manifest_bytes
from fedmeta.core.plain_values import parse_json


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn what the disk says into one line: full, read-only, not a folder, …"""
    try:
        yield
    except OSError as error:
        raise RunFolderError(
            f"cannot write {path} ({error.strerror or error})",
            "free some space or choose another folder with --out; what was there is unharmed",
        ) from error


_PRIVATE, _SHARED = 0o600, 0o666  # modes of files, less the umask


def write_bytes(path: Path, content: bytes, mode: int = _SHARED) -> None:
    """Write a file so that a crash leaves either the old one or the new one, never a part.

    A link in its place is replaced: in a folder from elsewhere it may lead to any file.

    Args:
        path: the file.
        content: what it will hold.
        mode: who may read and write it, less the umask; 0o600 for secrets.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    if path.exists() and not (path.is_file() or path.is_dir()):  # nor is a device replaced
        raise RunFolderError(f"{path} is a device, not a file", "name an ordinary file")
    with writing(path):
        try:
            temporary.unlink(missing_ok=True)
            temporary.touch(mode, exist_ok=False)  # never open to others, not even for a moment
            _write_synced(temporary, content)
            temporary.replace(path)
            _sync_folder(path.parent)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise


def private_folder(path: Path) -> Path:
    """A folder that only its owner may look into (0700), whatever the umask and whoever made it.

    What lies below is out of reach of others with it, also files that other programs write there.
    """
    with writing(path):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if path.stat().st_mode & 0o077:
            path.chmod(0o700)
    return path


def write_json(path: Path, value: object, *, private: bool = False) -> None:
    """Write JSON atomically; NaN and infinity are refused, since JSON has neither.

    Args:
        path: the file.
        value: what it will hold.
        private: only its owner may read it (0600), whatever the umask.
    """
    write_bytes(path, to_json(value).encode(), _PRIVATE if private else _SHARED)


def to_json(value: object) -> str:
    """Indented JSON for people and machines."""
    return json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False) + "\n"


def read_json(path: Path, what: str) -> dict[str, Any]:
    """Read a JSON file that holds one object, or say which file is missing or damaged.

    Args:
        path: the file.
        what: what it is, for the message ("settings of the run").
    """
    try:
        content = read_regular(path)
        check_listed(path, content)
        value = parse_json(content.decode("utf-8"))
    except FileNotFoundError as error:
        raise RunFolderError(f"there is no {path} ({what})", "check the path") from error
    except (OSError, ValueError) as error:
        raise RunFolderError(f"{path} ({what}) is damaged: {error}", "restore the file") from error
    if not isinstance(value, dict):
        raise RunFolderError(f"{path} ({what}) is damaged: not an object", "restore the file")
    return value


def write_tensors(
    path: Path,
    tensors: Mapping[str, Tensor],
    metadata: Mapping[str, str],
    *,
    private: bool = False,
) -> None:
    """Write named tensors, with text beside them, atomically; `private` as for `write_json`."""
    write_bytes(path, tensor_bytes(tensors, metadata), _PRIVATE if private else _SHARED)


def tensor_bytes(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> bytes:
    """Named tensors as the bytes of a safetensors file."""
    plain = {name: leaf.detach().cpu().contiguous().clone() for name, leaf in tensors.items()}
    return safetensors.torch.save(plain, dict(metadata) if metadata else None)


def content_digest(tensors: Mapping[str, Tensor], text: str) -> str:
    """SHA-256 of named tensors and a text, whatever file they are in.

    Example:
        >>> import torch
        >>> content_digest({"a": torch.zeros(2)}, "x")[:8]
        '9bcf4e8c'

    """
    found = hashlib.sha256(text.encode())
    for name, leaf in sorted(tensors.items()):
        found.update(f"\n{name} {leaf.dtype} {tuple(leaf.shape)}\n".encode())
        plain = leaf.detach().cpu().contiguous().reshape(-1)
        found.update(plain.view(torch.uint8).numpy().data)
    return found.hexdigest()


def payload_bytes(tensors: Mapping[str, Tensor]) -> int:
    """How many bytes a message with these tensors takes once serialised.

    Example:
        >>> import torch
        >>> payload_bytes({"a": torch.zeros(1000)}) >= 4000
        True
    """
    return len(tensor_bytes(tensors))


def read_tensors(path: Path, what: str) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read named tensors and the text beside them, or say what is wrong with the file."""
    if not path.is_file():
        raise RunFolderError(f"there is no {path} ({what})", "check the path")
    check_listed(path)
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            return tensors, dict(file.metadata() or {})
    except (OSError, safetensors.SafetensorError) as error:
        raise RunFolderError(
            f"{path} ({what}) is damaged or not a safetensors file ({error})",
            "restore it from a copy",
        ) from error


def seal(folder: Path, files: Iterable[str] | None = None) -> None:
    """Write a folder's manifest: the digests of its files.

    Args:
        folder: where they are.
        files: their names; None: all that lie right in the folder.
    """
    if files is None:
        names = (each.name for each in folder.iterdir() if each.is_file())
        files = [name for name in names if name[0] != "." and name not in UNLISTED]
    with writing(folder / MANIFEST):
        write_bytes(folder / MANIFEST, manifest_bytes({n: digest(folder / n) for n in files}))


def seal_again(path: Path) -> None:
    """Take a file that was written later into the manifest beside it, if there is one."""
    if (known := listed(path.parent)) is not None:
        digests = {**known, path.name: digest(path)}
        write_bytes(path.parent / MANIFEST, manifest_bytes(digests))


@contextmanager
def changing(path: Path) -> Iterator[None]:
    """Change a file that the manifest beside it lists; cut off in between, there is no manifest."""
    known = listed(path.parent)
    unseal(path.parent)
    yield
    if known is not None:
        digests = {**known, path.name: digest(path)}
        write_bytes(path.parent / MANIFEST, manifest_bytes(digests))


def unseal(folder: Path) -> None:
    """Take the manifest away, before a file that it lists is changed."""
    (folder / MANIFEST).unlink(missing_ok=True)


def write_folder(path: Path, files: Mapping[str, bytes]) -> None:
    """Write a folder of files so that it appears whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with writing(path):
        try:
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir(parents=True)
            for name, content in files.items():
                _write_synced(temporary / name, content)
            _sync_folder(temporary)
            if path.exists():
                shutil.rmtree(path)
            temporary.rename(path)
            _sync_folder(path.parent)
        except OSError:
            shutil.rmtree(temporary, ignore_errors=True)
            raise


def append_line(path: Path, line: str, *, private: bool = False) -> None:
    """Add a line to a file and have it on disk before going on; `private` as for `write_json`."""
    mode = _PRIVATE if private else _SHARED

    def opener(name: str, flags: int) -> int:
        return os.open(name, flags | os.O_NOFOLLOW, mode)

    with writing(path), open(path, "a", encoding="utf-8", opener=opener) as file:
        file.write(line + "\n")
        file.flush()
        os.fsync(file.fileno())


def _write_synced(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

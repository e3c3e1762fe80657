"""The C code here as a library: compiled at first use, and kept for later runs.

Nothing is compiled when fedmeta is imported. The library is kept in $FEDMETA_CACHE, else
~/.cache/fedmeta, in a folder of its own that nobody but its owner may enter; its name is a digest
of source, compiler, options and processor. Where there is no such folder (FEDMETA_CACHE=off, or a
disk that cannot be written) it is compiled anew in every process, which takes a second. Where there
is no compiler there is no library, and PyTorch computes.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import secrets
import shlex
import shutil
import stat
import subprocess
import tempfile
import threading
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from fedmeta.core.errors import FedmetaError
from fedmeta.core.storage import private_folder
from fedmeta.engine.feature_store import VARIABLE

_SOURCES = Path(__file__).parent
_MAIN = "meta_gradient.c"
_OPTIONS = ("-shared", "-fPIC", "-std=gnu11", "-O3", "-ffp-contract=fast", "-fno-math-errno")
_NATIVE = "-march=native"
_TYPES = {"float32": ("-DREAL=float",), "float64": ("-DREAL=double", "-DDOUBLE")}
_PROCESSOR = ("flags", "features", "cpu part")  # as x86 and ARM call what they can do
_SECONDS = 120  # that a compiler may take


_lock = threading.Lock()


def library(dtype: str) -> ctypes.CDLL | None:
    """The compiled code for "float32" or "float64"; None: it cannot be had on this machine."""
    with _lock:
        return found(dtype)


@lru_cache(maxsize=2)
def found(dtype: str) -> ctypes.CDLL | None:
    """What this process has found, see `library`."""
    compiler = _compiler()
    if compiler is None or os.name != "posix":
        return None
    try:
        name = _digest(compiler, dtype) + ".so"
    except (OSError, subprocess.SubprocessError):
        return None
    folder = _folder()
    if folder is not None:
        kept = _loaded(folder / name) or _compiled(compiler, dtype, folder / name)
        if kept is not None:
            return kept
    with suppress(OSError), tempfile.TemporaryDirectory(prefix="fedmeta-") as own:  # mode 0700
        return _compiled(compiler, dtype, Path(own) / name)  # mapped, it outlives its file
    return None


def _compiler() -> list[str] | None:
    """The command of the C compiler: $CC, or what is called cc, gcc or clang."""
    for name in (os.environ.get("CC", ""), "cc", "gcc", "clang"):
        command = shlex.split(name)
        if command and (path := shutil.which(command[0])):
            return [path, *command[1:]]
    return None


def _digest(compiler: list[str], dtype: str) -> str:
    """Of everything that decides what is compiled."""
    version = subprocess.run(
        [*compiler, "--version"], capture_output=True, check=True, timeout=_SECONDS
    )
    digest = hashlib.sha256(version.stdout)
    for source in sorted(_SOURCES.glob("*.[ch]")):
        digest.update(source.read_bytes())
    options = (*compiler, *_OPTIONS, _NATIVE, *_TYPES[dtype])
    digest.update(repr((options, platform.machine(), platform.system())).encode())
    with suppress(OSError):  # which instructions this processor has, where Linux says so
        facts = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        first = facts.partition("\n\n")[0].splitlines()
        told = [line for line in first if line.lower().startswith(_PROCESSOR)]
        digest.update("\n".join(told).encode())
    return digest.hexdigest()[:32]


def _folder() -> Path | None:
    """Where libraries are kept; None: nowhere that others could not put one."""
    given = os.environ.get(VARIABLE)
    if given == "off":
        return None
    base = given or os.environ.get("XDG_CACHE_HOME", "~/.cache") + "/fedmeta"
    with suppress(OSError, FedmetaError, RuntimeError):
        folder = (Path(base).expanduser() / "compiled").resolve()
        private_folder(folder)
        if _is_private(folder):
            return folder
    return None


def _is_private(folder: Path) -> bool:
    """Whether only its owner, which we are, can put files there or another folder in its place."""
    whole = folder.resolve()
    own = whole.stat()
    if own.st_uid != os.getuid() or own.st_mode & 0o077:
        return False
    above = [each.stat() for each in whole.parents]
    return all(
        each.st_uid in (0, os.getuid())
        and (not each.st_mode & 0o022 or bool(each.st_mode & stat.S_ISVTX))
        for each in above
    )


def _loaded(path: Path) -> ctypes.CDLL | None:
    """A library that we have compiled before; None: there is none, or it is not ours."""
    with suppress(OSError):
        facts = path.lstat()
        ours = facts.st_uid == os.getuid() and not facts.st_mode & 0o022
        if stat.S_ISREG(facts.st_mode) and ours:
            return ctypes.CDLL(str(path))
    return None


def _compiled(compiler: list[str], dtype: str, path: Path) -> ctypes.CDLL | None:
    """Compile to a file, which is there as a whole or not at all; None: that failed."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    source = [str(_SOURCES / _MAIN), "-o", str(temporary), "-lm"]
    try:
        for more in ((_NATIVE,), ()):  # some compilers know no processor by that name
            command = [*compiler, *_OPTIONS, *more, *_TYPES[dtype], *source]
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_SECONDS
            )
            if done.returncode == 0:
                temporary.chmod(0o700)
                temporary.replace(path)
                return _loaded(path)
    except (OSError, subprocess.SubprocessError):
        pass
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
    return None

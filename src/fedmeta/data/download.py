"""Public data sets from their official addresses: checked, resumed where they were cut, atomic."""

from __future__ import annotations

import hashlib
import tarfile
from collections.abc import Callable, Mapping
from http.client import HTTPException
from pathlib import Path
from typing import NamedTuple
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from fedmeta.core.errors import DataError, nearest
from fedmeta.core.storage import write_folder, writing
from fedmeta.data.readers.cifar import BINARY

Progress = Callable[[int, int | None], None]
"""Called with how many bytes have come, of how many (None: the server does not say)."""

_BLOCK = 1 << 20  # bytes read at once
_TIMEOUT = 60  # seconds without a byte after which a connection counts as cut


class Source(NamedTuple):
    """What is published of a data set.

    Args:
        address: of the folder on the server.
        files: MD5 by file name, as the authors publish them.
    """

    address: str
    files: Mapping[str, str]


SOURCES = {
    "fashion-mnist": Source(
        # Without TLS, as its authors serve it; the reader checks SHA-256 sums of the content too.
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
        {
            "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
            "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
            "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
        },
    ),
    "cifar10": Source(
        "https://www.cs.toronto.edu/~kriz",
        {"cifar-10-binary.tar.gz": "c32a1d4ab5d03f1284b67883e8d87530"},
    ),
    "cifar100": Source(
        "https://www.cs.toronto.edu/~kriz",
        {"cifar-100-binary.tar.gz": "03b5dce01913d631647c71ecec9e9cb8"},
    ),
}
_BY_HAND = {
    "hapt": "its archive publishes no checksum: get it from the UCI Machine Learning Repository, "
    "data set 341 (Smartphone-Based Recognition of Human Activities and Postural Transitions)",
    "digits": "it comes with scikit-learn: pip install 'fedmeta[digits]'",
    "sinusoid": "it is drawn, not fetched: just use it",
}


def fetch(name: str, folder: Path, progress: Progress, source: Source | None = None) -> bool:
    """Bring a data set's files into a folder; False if they were all there.

    What is there and whole is not fetched again. Archives are unpacked, only the files that the
    reader wants, and removed.

    Args:
        name: "fashion-mnist", "cifar10" or "cifar100".
        folder: where readers will find the files, by `data.folder` or $FEDMETA_DATA.
        progress: called with every block that has come.
        source: where to fetch from instead of the official address.

    Raises:
        DataError: for a wrong checksum (nothing stays) or a cut connection (what came stays, and
            the next call goes on from there).
    """
    if source is None:
        if name not in SOURCES:
            raise DataError(
                f"{name!r} cannot be fetched", _BY_HAND.get(name) or nearest(name, SOURCES)
            )
        source = SOURCES[name]
    layout = BINARY.get(name)
    if layout and all((folder / layout.folder / file).is_file() for file in layout.files):
        return False
    fetched = [
        download(f"{source.address}/{file}", folder / file, md5, progress)
        for file, md5 in source.files.items()
    ]
    if layout is None:
        return any(fetched)
    for file in source.files:
        contents = _members(folder / file, layout.folder, layout.files)
        write_folder(folder / layout.folder, contents)
        (folder / file).unlink()
    return True


def download(address: str, path: Path, md5: str, progress: Progress) -> bool:
    """Fetch one file, so that it appears under its name only when it is whole; False if it was.

    What has come so far lies beside it as NAME.part, and is gone on with.
    """
    if path.is_file() and digest(path) == md5:
        return False
    part = path.with_name(path.name + ".part")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    _receive(address, part, progress)
    if (found := digest(part)) != md5:
        part.unlink()
        raise DataError(
            f"{address} is not the published file (MD5 {found}, not {md5})",
            "try again; if it stays so, the file has changed or the connection is tampered with",
        )
    part.replace(path)
    return True


def digest(path: Path) -> str:
    """MD5 of a file, which is what the authors publish: against accidents, not against forgers."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _receive(address: str, part: Path, progress: Progress) -> None:
    """Add to a file what it lacks, or write it anew where the server cannot go on within a file."""
    have = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": "fedmeta", **({"Range": f"bytes={have}-"} if have else {})}
    wanted: int | None = None
    try:
        with urlopen(Request(address, headers=headers), timeout=_TIMEOUT) as answer:
            have = have if answer.status == 206 else 0
            if answer.headers["Content-Length"] is not None:
                wanted = have + int(answer.headers["Content-Length"])
            with writing(part):
                file = part.open("ab" if have else "wb")
            with file:
                while block := answer.read(_BLOCK):
                    with writing(part):
                        file.write(block)
                    have += len(block)
                    progress(have, wanted)
    except HTTPError as error:
        if error.code != 416:  # then it is whole, or not what we think: the checksum will tell
            raise DataError(
                f"{address} answers {error.code} {error.reason}", "try again later"
            ) from error
    except (URLError, HTTPException, OSError) as error:
        reason = getattr(error, "reason", error)
        raise _interrupted(address, f"{reason}") from error
    if wanted is not None and have < wanted:
        raise _interrupted(address, f"{have} of {wanted} bytes came")


def _interrupted(address: str, why: str) -> DataError:
    return DataError(
        f"{address} could not be fetched ({why})",
        "check the connection and run it again: it goes on where it stopped",
    )


def _members(archive: Path, folder: str, files: tuple[str, ...]) -> dict[str, bytes]:
    """The contents of those files alone, so that no path in an archive is ever followed."""
    contents = {}
    try:
        with tarfile.open(archive) as tar:
            for file in files:
                member = tar.extractfile(f"{folder}/{file}")
                contents[file] = member.read() if member else b""
    except (tarfile.TarError, KeyError, EOFError, OSError) as error:
        raise DataError(f"{archive} cannot be unpacked ({error})", "fetch it again") from error
    return contents

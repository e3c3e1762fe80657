"""Data sets fetched from a server on this machine that does what servers do, good and bad."""

from __future__ import annotations

import hashlib
import io
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from cli.calling import call, succeed
from fedmeta.core.errors import DataError, FedmetaError
from fedmeta.data import download as fetching
from fedmeta.data.download import Source, download, fetch
from fedmeta.data.readers.cifar import BINARY, read_cifar

pytestmark = pytest.mark.usefixtures("no_data")
CONTENT = np.random.default_rng(0).bytes(3_000_000)


@dataclass
class Server:
    """What it serves, how it misbehaves, and what it was asked for.

    Args:
        address: where it is.
        files: content by name.
        cut_at: bytes after which the next answer's connection is cut; None: never.
        ranges: whether it knows how to go on within a file.
    """

    address: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    cut_at: int | None = None
    ranges: bool = True
    asked: list[tuple[str, str | None]] = field(default_factory=list)

    def source(self, **files: bytes) -> Source:
        names = {name.replace("_tar_gz", ".tar.gz"): each for name, each in files.items()}
        self.files.update(names)
        return Source(self.address, {name: md5(each) for name, each in names.items()})


@pytest.fixture
def server() -> Iterator[Server]:
    served = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name, wanted = self.path.lstrip("/"), self.headers["Range"]
            served.asked.append((name, wanted))
            content = served.files.get(name)
            if content is None:
                self.send_error(404)
                return
            start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted else 0
            if not served.ranges:
                start = 0
            elif start >= len(content) > 0:
                self.send_error(416)
                return
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(len(content) - start))
            self.end_headers()
            end, served.cut_at = served.cut_at, None
            self.wfile.write(content[start:end])

        def log_message(self, *_: object) -> None:
            pass

    host = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    served.address = f"http://127.0.0.1:{host.server_port}"
    thread = threading.Thread(target=host.serve_forever)
    thread.start()
    yield served
    host.shutdown()
    thread.join()
    host.server_close()


def md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def silent(_done: int, _wanted: int | None) -> None:
    pass


def test_what_is_whole_is_not_fetched_again(server: Server, tmp_path: Path) -> None:
    source, told = server.source(a=CONTENT, b=b"small"), []
    assert fetch("any", tmp_path, lambda *numbers: told.append(numbers), source)
    assert (tmp_path / "a").read_bytes() == CONTENT
    assert told[-2:] == [(len(CONTENT), len(CONTENT)), (5, 5)]
    assert not fetch("any", tmp_path, silent, source)
    (tmp_path / "b").write_bytes(b"smell")
    assert fetch("any", tmp_path, silent, source)
    assert (tmp_path / "b").read_bytes() == b"small"
    assert server.asked == [("a", None), ("b", None), ("b", None)]


def test_a_cut_connection_goes_on_where_it_stopped(server: Server, tmp_path: Path) -> None:
    source, server.cut_at = server.source(a=CONTENT), 1_200_000
    with pytest.raises(DataError, match=r"1200000 of 3000000 bytes came.*goes on where it stopped"):
        fetch("any", tmp_path, silent, source)
    assert [path.name for path in tmp_path.iterdir()] == ["a.part"]
    fetch("any", tmp_path, silent, source)
    assert server.asked[1] == ("a", "bytes=1200000-")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_bytes() == CONTENT


def test_a_server_that_cannot_go_on_starts_again(server: Server, tmp_path: Path) -> None:
    source, server.cut_at, server.ranges = server.source(a=CONTENT), 1_200_000, False
    with pytest.raises(DataError):
        fetch("any", tmp_path, silent, source)
    fetch("any", tmp_path, silent, source)
    assert (tmp_path / "a").read_bytes() == CONTENT


def test_a_part_that_was_whole_already_is_taken(server: Server, tmp_path: Path) -> None:
    source = server.source(a=CONTENT)
    (tmp_path / "a.part").write_bytes(CONTENT)  # killed right before it got its name
    fetch("any", tmp_path, silent, source)
    assert (tmp_path / "a").read_bytes() == CONTENT
    assert server.asked == [("a", f"bytes={len(CONTENT)}-")]


@pytest.mark.parametrize("part", [b"", b"of something else", CONTENT + b"more"])
def test_a_wrong_checksum_leaves_nothing(server: Server, tmp_path: Path, part: bytes) -> None:
    source = server.source(a=CONTENT)
    server.files["a"] = b"forged"
    if part:
        (tmp_path / "a.part").write_bytes(part)
    with pytest.raises(DataError, match="is not the published file"):
        fetch("any", tmp_path, silent, source)
    assert list(tmp_path.iterdir()) == []


def test_no_answer_and_no_such_file(server: Server, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="answers 404 Not Found"):
        download(f"{server.address}/missing", tmp_path / "a", "0", silent)
    with pytest.raises(DataError, match=r"could not be fetched \(.*refused"):
        download("http://127.0.0.1:9/a", tmp_path / "a", "0", silent)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FedmetaError, match="cannot write"):
        fetch("any", tmp_path / "file" / "folder", silent, server.source(a=b"1"))
    assert server.asked == []


def archive(name: str, rows: int = 3, *, without: str = "") -> tuple[bytes, np.ndarray]:
    """An archive as the authors pack it, with few images; and the images."""
    layout, rng = BINARY[name], np.random.default_rng(1)
    images = rng.integers(0, 256, (len(layout.batches), rows, 3072), dtype=np.uint8)
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as tar:
        for file in layout.files:
            if file == layout.names:
                data = "".join(f"class{i}\n" for i in range(10)).encode() + b"\n"
            else:
                number = layout.batches.index(file)
                labels = np.full((rows, layout.label_bytes), 7, np.uint8)
                labels[:, -1] = number
                data = np.hstack([labels, images[number]]).tobytes()
            if file != without:
                info = tarfile.TarInfo(f"{layout.folder}/{file}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
        info = tarfile.TarInfo("../outside")
        tar.addfile(info, io.BytesIO())
    return content.getvalue(), images


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_cifar_is_fetched_unpacked_and_read(name: str, server: Server, tmp_path: Path) -> None:
    packed, images = archive(name)
    source, place = server.source(c_tar_gz=packed), tmp_path / "data"
    assert fetch(name, place, silent, source)
    assert {path.name for path in place.iterdir()} == {BINARY[name].folder}
    assert not (tmp_path / "outside").exists()
    for folder in (place, place / BINARY[name].folder):
        pool = read_cifar(name, str(folder))
        assert (pool.inputs.reshape(images.shape) == images).all()
        assert pool.inputs.shape[1:] == (3, 32, 32)
        assert pool.labels.tolist() == np.repeat(np.arange(len(images)), 3).tolist()
        assert pool.class_names[9] == "class9"
    assert not fetch(name, place, silent, source)
    assert len(server.asked) == 1


def test_an_archive_that_lacks_a_file(server: Server, tmp_path: Path) -> None:
    packed, _ = archive("cifar10", without="test_batch.bin")
    with pytest.raises(DataError, match=r"cannot be unpacked.*test_batch.bin"):
        fetch("cifar10", tmp_path, silent, server.source(c_tar_gz=packed))
    assert not (tmp_path / BINARY["cifar10"].folder).exists()


def test_damaged_batches_are_refused(tmp_path: Path) -> None:
    layout = BINARY["cifar100"]
    (tmp_path / layout.names).write_text("a\nb\n")
    (tmp_path / "train.bin").write_bytes(bytes(3074 + 5))
    with pytest.raises(DataError, match="no whole number of images"):
        read_cifar("cifar100", str(tmp_path))
    (tmp_path / "train.bin").write_bytes(bytes([0, 2]) + bytes(3072))
    with pytest.raises(DataError, match="labels up to 2 for 2 class names"):
        read_cifar("cifar100", str(tmp_path))
    (tmp_path / "train.bin").write_bytes(bytes(3074))
    with pytest.raises(DataError, match=r"test.bin is missing"):
        read_cifar("cifar100", str(tmp_path))


def test_on_the_command_line(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed, _ = archive("cifar10", rows=20)
    source = server.source(c_tar_gz=packed)
    monkeypatch.setattr(fetching, "SOURCES", {"cifar10": source})
    monkeypatch.chdir(tmp_path)
    out = succeed("data get cifar10")
    assert "cifar10 is now in data" in out
    described = succeed(out.splitlines()[1].split("fedmeta ")[1] + " --nodes 3 --seed 0")
    assert "cifar10: classification, samples of shape (3, 32, 32)" in described
    assert "was already in data" in succeed("data get cifar10", "plain")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("data get cifar11", "did you mean 'cifar10' or 'cifar100'?"),
        ("data get hapt", "UCI Machine Learning Repository"),
        ("data get", "or fedmeta data get NAME"),
        ("data fetch cifar10", "or fedmeta data get NAME"),
    ],
)
@pytest.mark.parametrize("shell", ["typer", "plain"])
def test_what_cannot_be_got(line: str, words: str, shell: str) -> None:
    outcome = call(line, shell)
    assert outcome.code == 2
    assert words in outcome.complaint

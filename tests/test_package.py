"""What `python -m build` makes: whole, and at home with the core dependencies alone."""

from __future__ import annotations

import importlib.metadata
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[1]
CORE = ("torch", "numpy", "safetensors")


def run(*command: object, cwd: Path) -> str:
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with sdist and wheel, the wheel made from the sdist."""
    pytest.importorskip("build")
    work = tmp_path_factory.mktemp("package")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, work)
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", work / "src", ignore=ignored)
    # Without isolation it takes the setuptools that is here, and nothing is fetched.
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", work / "dist", cwd=work)
    return work / "dist"


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (path,) = built.glob("*.whl")
    return path


def test_nothing_is_missing(built: Path, wheel: Path) -> None:
    ours = {
        path.relative_to(ROOT / "src").as_posix()
        for path in (ROOT / "src/fedmeta").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {"fedmeta/py.typed", "fedmeta/studies/sequences/ready/digits.toml"} <= ours
    with zipfile.ZipFile(wheel) as packed:
        names = set(packed.namelist())
    assert ours <= names, "add it to package-data in pyproject.toml"
    assert any(re.fullmatch(r"fedmeta-[^/]+\.dist-info/licenses/LICENSE", name) for name in names)
    (source,) = built.glob("*.tar.gz")
    with tarfile.open(source) as packed_source:
        inside = {name.partition("/")[2] for name in packed_source.getnames()}
    assert {f"src/{name}" for name in ours} | {"LICENSE", "README.md", "pyproject.toml"} <= inside


def test_the_core_is_three(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as packed:
        (place,) = [name for name in packed.namelist() if name.endswith(".dist-info/METADATA")]
        about = Parser().parsestr(packed.read(place).decode())
    needed = [each for each in about.get_all("Requires-Dist", []) if "extra ==" not in each]
    assert {re.split(r"[<>=!~ ]", each)[0] for each in needed} == set(CORE)
    assert about["License-Expression"] == "Apache-2.0"
    assert re.fullmatch(r"\d+\.\d+\.\d+", about["Version"])


def test_it_runs_where_nothing_else_is(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "clean", with_pip=False)
    python = tmp_path / "clean/bin/python"
    install = ("pip", "--python", python, "install", "--no-deps", "--no-index", wheel)
    run(sys.executable, "-m", *install, cwd=tmp_path)
    (packages,) = (tmp_path / "clean/lib").glob("python*/site-packages")
    for path in needed_by(CORE):
        if not (packages / path.name).exists():
            (packages / path.name).symlink_to(path)
    bare = "import importlib.util as u; print(u.find_spec('typer'), u.find_spec('rich'))"
    assert run(python, "-c", bare, cwd=tmp_path) == "None None\n"
    version = importlib.metadata.version("fedmeta")
    program = tmp_path / "clean/bin/fedmeta"
    assert run(program, "--version", cwd=tmp_path).startswith(f"fedmeta {version} ")
    assert "train" in run(python, "-m", "fedmeta", cwd=tmp_path)
    line = "train --data sinusoid --nodes 6 --rounds 2 --model linear --out run"
    assert "finished after 2 rounds" in run(program, *line.split(), cwd=tmp_path)
    refused = subprocess.run([program, "reproduce", "table1"], capture_output=True, text=True)
    assert "experiments are in the source tree" in refused.stderr
    where = run(python, "-c", "import fedmeta; print(fedmeta.__file__)", cwd=tmp_path)
    assert where.startswith(str(packages))


def needed_by(names: tuple[str, ...]) -> set[Path]:
    """The installed files and folders of some distributions and of all they need."""
    left, known, places = list(names), set(), set()
    while left:
        name = left.pop().lower().replace("_", "-")
        if name in known:
            continue
        known.add(name)
        try:
            found = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # needed on other systems only
        tops = {file.parts[0] for file in found.files or () if file.parts[0] != ".."}
        places |= {Path(str(found.locate_file(top))) for top in tops - {"__pycache__"}}
        needs = [each for each in found.requires or () if "extra ==" not in each]
        left += [re.split(r"[<>=!~;\[ (]", each)[0] for each in needs]
    return places


def test_who_is_to_be_cited() -> None:
    yaml = pytest.importorskip("yaml")
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    version = importlib.metadata.version("fedmeta")
    assert (cited["version"], cited["license"]) == (version, "Apache-2.0")
    paper = cited["preferred-citation"]
    assert [each["family-names"] for each in paper["authors"]] == [
        *("Yue", "Ren", "Xin", "Lin", "Zhang")
    ]
    assert f"## {version}" in (ROOT / "CHANGELOG.md").read_text("utf-8")

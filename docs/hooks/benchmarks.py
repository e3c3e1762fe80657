"""The page of the benchmarks, which lies beside them, shown on the site with its plots."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files


def on_files(files: Files, config: Any) -> Files:
    """Add the page and the plots."""
    root = Path(config["config_file_path"]).parent
    for path in (root / "benchmarks/README.md", *sorted((root / "benchmarks").glob("*.svg"))):
        uri = path.relative_to(root).as_posix()
        files.append(File.generated(config, uri, abs_src_path=str(path)))
    return files

"""Links to files that only a checkout has: on the site their words stay, without the link."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import Files

_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)#\s]+)(#[^)\s]*)?\)")


def on_page_markdown(text: str, page: Any, config: Any, files: Files) -> str:
    """Unlink what the site does not have; what nobody has is left to be complained of."""
    here = Path(page.file.abs_src_path or Path(config["docs_dir"], page.file.src_uri)).parent

    def kept(link: re.Match[str]) -> str:
        uri = posixpath.normpath(posixpath.join(posixpath.dirname(page.file.src_uri), link[2]))
        only_here = (here / link[2]).exists() and files.get_file_from_path(uri) is None
        return link[1] if only_here else link[0]

    return _LINK.sub(kept, text)

"""A hook of MkDocs: pages of the repository outside docs/ join the site, and links between the two are rewritten.

In the repository a page links to another by its path, so that both work where files are read as they are.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any, Final

from mkdocs.structure.files import File, Files

ROOT: Final = Path(__file__).resolve().parents[2]
OUTSIDE: Final = {
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "README.md": "index.md",
    "SECURITY.md": "security.md",
    "bench/README.md": "measurements.md",
}
"""Where a page of the repository is in the site. README.md is not there itself: docs/index.md stands in for it."""
LINK: Final = re.compile(r"(!?)\[([^\]]*)\]\(([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    for source, target in OUTSIDE.items():
        if source != "README.md":
            files.append(File.generated(config, target, content=(ROOT / source).read_text("utf-8")))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Files) -> str:
    here = page.file.src_uri
    source = next((path for path, target in OUTSIDE.items() if target == here and path != "README.md"), f"docs/{here}")

    def rewritten(link: re.Match[str]) -> str:
        image, text, target, anchor = link[1], link[2], link[3], link[4] or ""
        if "://" in target:
            return link[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        there = OUTSIDE.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else "")
        if not there:
            return text  # a file of the repository that is no page
        return f"{image}[{text}]({posixpath.relpath(there, posixpath.dirname(here) or '.')}{anchor})"

    return LINK.sub(rewritten, markdown)

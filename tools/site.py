"""Build the documents as a site with search: python -m tools.site [--out DIR].

The pages in the folders of `docs/` and the repository's own pages (CONTRIBUTING and its like) are copied, their links
and headings are adapted, and zensical makes HTML from the copies. It needs no network, and a reader's browser loads
nothing from other hosts.

Invariants:

- The menu is that of `docs/index.md`: its headings are the sections, and its links the pages, in that order.
- An anchor is the same as on GitHub, so that a link works in both places.
- A link to a page stays inside the site. A link to another file leads to the repository's address in `pyproject.toml`.
- A page that a link does not find, or an anchor, ends the build with exit code 1, and the old site stays.
- The pages directly in `docs/` only keep old addresses on GitHub alive, so the site leaves them out.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
BUILD = ROOT / "build"

PROJECT_PAGES = ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "CODE_OF_CONDUCT.md")
"""Pages outside `docs/` that the site shows, in the section "The project"."""

PROJECT = "project"
"""Folder of the site for them."""

_HEADING = re.compile(r"^(#{1,6}) (.+?)\s*$")
_LINK = re.compile(r"(\]\()([^)\s]+)(\))")
_FENCE = re.compile(r"^ {0,3}(```|~~~)")

CONFIG = """\
[project]
site_name = "Volery"
site_description = "Reinforcement learning of language models over a peer-to-peer swarm"
docs_dir = "source"
site_dir = "site"
use_directory_urls = false
extra_css = ["site.css"]
nav = {nav}

[project.theme]
language = "en"
font = false
features = [
    "content.code.copy", "navigation.footer", "navigation.sections", "navigation.top", "search.highlight", "toc.follow",
]

[[project.theme.palette]]
media = "(prefers-color-scheme: light)"
scheme = "default"

[[project.theme.palette]]
media = "(prefers-color-scheme: dark)"
scheme = "slate"

[project.markdown_extensions.attr_list]
[project.markdown_extensions.tables]
[project.markdown_extensions.toc]
permalink = true
[project.markdown_extensions.pymdownx.superfences]
"""


CSS = """\
/* A key in a table's first column stays on one line, so that it can be searched for and copied. */
.md-typeset td:first-child code { white-space: nowrap; }
"""


def anchor_of(heading: str) -> str:
    """Return the anchor that GitHub gives to a heading, given as Markdown, the first time that a page has it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def outside_fences(text: str) -> Iterator[tuple[str, bool]]:
    """Yield each line of a page, and whether it is outside fenced code."""
    fence = ""
    for line in text.split("\n"):
        mark = _FENCE.match(line)
        yield line, not fence and not mark
        if mark and not fence:
            fence = mark[1]
        elif mark and line.strip() == fence:
            fence = ""


def headings(text: str) -> Iterator[tuple[str, str]]:
    """Yield (heading as Markdown, its anchor on GitHub) of a page, from the first to the last."""
    seen = Counter[str]()
    for line, plain in outside_fences(text):
        if plain and (match := _HEADING.match(line)):
            anchor = anchor_of(match[2])
            yield match[2], f"{anchor}-{seen[anchor]}" if seen[anchor] else anchor
            seen[anchor] += 1


def with_anchors(text: str) -> str:
    """Return the page with the anchor of each heading written beside it."""
    anchors = [anchor for _, anchor in headings(text)]
    lines = []
    for line, plain in outside_fences(text):
        is_heading = plain and _HEADING.match(line)
        lines.append(f"{line.rstrip()} {{#{anchors.pop(0)}}}" if is_heading else line)
    return "\n".join(lines)


def with_links(text: str, adapt: Callable[[str], str]) -> str:
    """Return the page with the target of each link outside fenced code replaced by what `adapt` returns for it."""
    return "\n".join(
        _LINK.sub(lambda link: link[1] + adapt(link[2]) + link[3], line) if plain else line
        for line, plain in outside_fences(text)
    )


def place_of(page: Path) -> Path | None:
    """Return the place of a file of the repository inside the site's source. None: the site does not show it."""
    if page.is_relative_to(DOCS) and (page.parent != DOCS or page.name == "index.md"):
        return page.relative_to(DOCS)
    return Path(PROJECT, page.name) if page.parent == ROOT and page.name in PROJECT_PAGES else None


def adapted(target: str, page: Path, repository: str) -> str:
    """Return the target of a link on `page` as the site's copy of that page needs it."""
    name, mark, anchor = target.partition("#")
    if not name or re.match(r"[a-z]+:", name):
        return target
    file = (page.parent / name).resolve()
    here, there = place_of(page), place_of(file)
    if there is None:
        return f"{repository}/blob/main/{file.relative_to(ROOT)}"
    assert here is not None
    return os.path.relpath(there, here.parent) + mark + anchor


def sections(index: str) -> dict[str, list[str]]:
    """Return the pages that `docs/index.md` links to, as paths below `docs/`, by the heading above them."""
    found: dict[str, list[str]] = {}
    for part in re.split(r"^## ", index, flags=re.MULTILINE)[1:]:
        pages = re.findall(r"\]\(([\w-]+/[\w-]+\.md)\)", part)
        found[part.split("\n", 1)[0].strip()] = pages
    return found


def source_pages() -> list[Path]:
    """Return every page that the site shows."""
    pages = [*sorted(DOCS.rglob("*.md")), *(ROOT / name for name in PROJECT_PAGES)]
    return [page for page in pages if place_of(page) is not None]


def stage(source: Path) -> None:
    """Write the adapted pages and the files beside them, such as pictures, to the directory `source`."""
    repository = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["urls"]["Repository"]
    shutil.copytree(DOCS, source, ignore=shutil.ignore_patterns("*.md"))
    (source / "site.css").write_text(CSS, "utf-8")
    for page in source_pages():
        place = place_of(page)
        assert place is not None
        text = with_links(page.read_text("utf-8"), lambda target, page=page: adapted(target, page, repository))
        (source / place).parent.mkdir(parents=True, exist_ok=True)
        (source / place).write_text(with_anchors(text), "utf-8")


def menu() -> str:
    """Return the menu in the form of zensical's configuration."""
    parts: list[dict[str, str | list[str]]] = [{"Documents": "index.md"}]
    parts += [{title: pages} for title, pages in sections((DOCS / "index.md").read_text("utf-8")).items()]
    parts += [{"The project": [f"{PROJECT}/{name}" for name in PROJECT_PAGES]}]
    tables = (f"{{ {json.dumps(title)} = {json.dumps(pages)} }}" for part in parts for title, pages in part.items())
    return f"[{', '.join(tables)}]"


def build(out: Path) -> int:
    """Build the site in `out`, which is replaced. Return zensical's exit code."""
    work = BUILD / "documents"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    stage(work / "source")
    (work / "zensical.toml").write_text(CONFIG.format(nav=menu()), "utf-8")
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean", "-f", "zensical.toml"]
    code = subprocess.run(command, cwd=work, env={**os.environ, "NO_COLOR": "1"}, check=False).returncode
    if code == 0:
        shutil.rmtree(out, ignore_errors=True)
        shutil.move(work / "site", out)
    return code


def main() -> int:
    """Build the site, and say where it is."""
    parser = argparse.ArgumentParser(description="Build the documents as a site with search.")
    parser.add_argument("--out", type=Path, default=BUILD / "site", help="directory of the site, which is replaced")
    out = parser.parse_args().out
    if code := build(out):
        print("volery: the documents have the faults above; no site was written", file=sys.stderr)
        return code
    where = os.path.relpath(out)
    print(f"{len(source_pages())} pages are in {where}. To read them, with search:")
    print(f"    python3 -m http.server -d {where} 8000    and open http://127.0.0.1:8000")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Build the documents' site: its menu, its links and anchors, what a browser would load, and what a fault does."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tools import site

REPOSITORY = "https://host.example/volery"


def test_an_anchor_is_that_of_github() -> None:
    page = "# `[swarm]` and S\n\n```sh\n# no heading\n```\n\n## What? Why: 1.5\n\n## What? Why: 1.5\n"
    assert [anchor for _, anchor in site.headings(page)] == ["swarm-and-s", "what-why-15", "what-why-15-1"]
    assert site.with_anchors(page).splitlines()[0] == "# `[swarm]` and S {#swarm-and-s}"
    assert "\n# no heading\n" in site.with_anchors(page)


@pytest.mark.parametrize(
    ("page", "target", "adapted"),
    [
        ("docs/lend/network.md", "../start/join.md#install", "../start/join.md#install"),
        ("docs/index.md", "../CONTRIBUTING.md", "project/CONTRIBUTING.md"),
        ("docs/explain/threats.md", "../../SECURITY.md#report", "../project/SECURITY.md#report"),
        ("CONTRIBUTING.md", "docs/explain/faults.md", "../explain/faults.md"),
        ("CONTRIBUTING.md", "SECURITY.md", "SECURITY.md"),
        ("docs/explain/benchmarks.md", "../../tools/prose.py", f"{REPOSITORY}/blob/main/tools/prose.py"),
        ("docs/start/faq.md", "#answers", "#answers"),
        ("docs/start/faq.md", "https://semver.org/", "https://semver.org/"),
    ],
)
def test_a_link_leads_to_the_same_place_as_in_the_repository(page: str, target: str, adapted: str) -> None:
    assert site.adapted(target, ROOT / page, REPOSITORY) == adapted


def test_the_menu_has_every_page_once() -> None:
    listed = [
        page for pages in site.sections((ROOT / "docs" / "index.md").read_text("utf-8")).values() for page in pages
    ]
    assert sorted([*listed, "index.md"]) == sorted(
        str(place) for page in site.source_pages() if (place := site.place_of(page)) and place.parts[0] != site.PROJECT
    )


def test_the_site_is_built_and_loads_nothing_from_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(site, "BUILD", tmp_path)
    code = site.build(tmp_path / "out")
    assert code == 0, capfd.readouterr().err
    for page in site.source_pages():
        place = site.place_of(page)
        assert place is not None
        html = (tmp_path / "out" / place.with_suffix(".html")).read_text("utf-8")
        loaded = re.findall(r'<(?:script|img|iframe)[^>]* src="([^"]+)"|<link[^>]* href="([^"]+)"', html)
        assert [address for pair in loaded for address in pair if re.match(r"(https?:)?//", address)] == []
    assert (tmp_path / "out" / "search.json").stat().st_size > 100_000


@pytest.mark.parametrize("fault", ["[a page](missing.md)", "[a part](demo.md#no-such-part)"])
def test_a_broken_link_ends_the_build_and_the_old_site_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], fault: str
) -> None:
    docs = shutil.copytree(ROOT / "docs", tmp_path / "docs")
    with (docs / "start" / "join.md").open("a", encoding="utf-8") as page:
        page.write(f"\n{fault}\n")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "index.html").write_text("old", "utf-8")
    for name in site.PROJECT_PAGES:
        shutil.copy(ROOT / name, tmp_path)
    for name, value in {"ROOT": tmp_path, "DOCS": docs, "BUILD": tmp_path / "build"}.items():
        monkeypatch.setattr(site, name, value)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    assert site.build(tmp_path / "out") != 0
    assert "join.md" in capfd.readouterr().err
    assert (tmp_path / "out" / "index.html").read_text("utf-8") == "old"

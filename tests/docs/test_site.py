"""The site builds without a warning; its links lead somewhere, and nothing comes from elsewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest

from tests.docs.pages import DOCS, ROOT

pytest.importorskip("sphinx", reason="the extra docs is not installed")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not DOCS.exists(), reason="pages stand in a checkout only"),
]


def build(folder: Path) -> Path:
    """Build the site as CI does; return its folder."""
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html"]
    command += ["-d", str(folder / "trees"), "docs", str(folder / "html")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "html"


def test_the_site(tmp_path: Path) -> None:
    """One test, as building takes twenty seconds and writes the pages of the reference."""
    site = build(tmp_path)
    pages = {path: path.read_text("utf-8") for path in site.rglob("*.html")}
    assert len(pages) > 100
    assert links_to_nowhere(pages, site) == []
    assert {path.name: found for path, text in pages.items() if (found := foreign(text))} == {}
    check_twins(pages, site)
    index = (site / "searchindex.js").read_text("utf-8")
    for word in ("bucket_cap", "oversubscript", "dualpip"):
        assert word in index, word


def links_to_nowhere(pages: Mapping[Path, str], site: Path) -> list[str]:
    """Relative links whose file or anchor there is not."""
    anchors = {path: {*re.findall(r'\bid="([^"]+)"', text)} for path, text in pages.items()}
    wrong = []
    for path, text in pages.items():
        for link in re.findall(r'<a [^>]*href="([^"]+)"', text):
            address, anchor = urldefrag(link)
            if re.match(r"[a-z]+:", address):
                continue
            target = (path.parent / unquote(address)).resolve() if address else path
            if not target.exists() or (anchor and anchor not in anchors.get(target, {anchor})):
                wrong.append(f"{path.relative_to(site)}: {link}")
    return wrong


def foreign(text: str) -> list[str]:
    """What a page loads from elsewhere."""
    loaded = re.findall(r'<(?:script|img|iframe)[^>]*\bsrc="([^"]+)"', text)
    loaded += re.findall(r'<link[^>]*rel="(?:stylesheet|preload)"[^>]*href="([^"]+)"', text)
    return [each for each in loaded if each.startswith(("http", "//"))]


def check_twins(pages: Mapping[Path, str], site: Path) -> None:
    """See that each page has its twin, and that the list for programs has all."""
    listed = re.findall(r"\]\(([^)]+\.md)\)", (site / "llms.txt").read_text("utf-8"))
    for name in listed:
        assert "{eval-rst}" not in (site / name).read_text("utf-8")
    names = (path.relative_to(site).with_suffix("") for path in pages)
    written = {name.as_posix() for name in names if name.parts[0] != "_static"}
    assert written - {"genindex", "search", "index"} == {
        name.removesuffix(".md") for name in listed
    }


def test_a_wrong_link_is_noticed(tmp_path: Path) -> None:
    here, there = (tmp_path / name for name in ("here.html", "there.html"))
    there.write_text('<p id="known">')
    links = ("there.html#known", "there.html#gone", "gone.html", "https://example.org/gone")
    text = "".join(f'<a href="{link}">' for link in links)
    found = links_to_nowhere({here: text, there: there.read_text()}, tmp_path)
    assert found == ["here.html: there.html#gone", "here.html: gone.html"]
    assert foreign('<script src="https://example.org/a.js">') == ["https://example.org/a.js"]

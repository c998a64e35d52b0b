"""The site builds without a warning; its links lead somewhere, and nothing comes from elsewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest

from tests.docs.pages import DOCS, ROOT

pytest.importorskip("sphinx", reason="the extra docs is not installed")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not DOCS.exists(), reason="pages stand in a checkout only"),
]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html"]
    command += ["-d", str(folder / "trees"), "docs", str(folder / "html")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder / "html"


def test_links_lead_somewhere(site: Path) -> None:
    pages = {path: path.read_text("utf-8") for path in site.rglob("*.html")}
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
    assert wrong == []


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    for path in site.rglob("*.html"):
        text = path.read_text("utf-8")
        loaded = re.findall(r'<(?:script|img|iframe)[^>]*\bsrc="([^"]+)"', text)
        loaded += re.findall(r'<link[^>]*rel="(?:stylesheet|preload)"[^>]*href="([^"]+)"', text)
        assert not [each for each in loaded if each.startswith(("http", "//"))], path


def test_each_page_has_its_twin(site: Path) -> None:
    listed = re.findall(r"\]\(([^)]+\.md)\)", (site / "llms.txt").read_text("utf-8"))
    assert len(listed) > 80
    for name in listed:
        twin, page = site / name, (site / name).with_suffix(".html")
        assert page.exists(), name
        assert "{eval-rst}" not in twin.read_text("utf-8")
    pages = (path.relative_to(site).with_suffix("") for path in site.rglob("*.html"))
    written = {path.as_posix() for path in pages if path.parts[0] != "_static"}
    generated = {"genindex", "search", "index", "py-modindex"}
    assert written - generated == {name.removesuffix(".md") for name in listed}


def test_what_a_reader_searches_is_found(site: Path) -> None:
    index = (site / "searchindex.js").read_text("utf-8")
    for word in ("bucket_cap", "oversubscript", "dualpip"):
        assert word in index, word

"""The site builds without a warning, its links lead somewhere, and a browser shows every page as it should be.

What is missing here is named: Sphinx and its theme (the group `docs`), or a Chromium on `PATH`. `.ci/run` has both.
To see the pages yourself: `AIOLOCKS_SCREENSHOTS=FOLDER .venv/bin/python -m pytest tests/surface/test_site.py`.
"""

import base64
import functools
import http.server
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from tests.support.browser import Browser, axe, browser, find_chromium

pytestmark = pytest.mark.rest

REPOSITORY = Path(__file__).parents[2]
WIDTHS = (390, 1280)
SEARCHED = ("redlock", "rate", "django", "stuck")
JUDGED = ("index.html", "tutorial.html", "reference/index.html", "reference/Lock.html")
"""The pages in which axe looks for barriers."""

BEYOND = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
BROKEN = "[...document.images].filter(image => !image.naturalWidth).map(image => image.src)"
FOUND = """
new Promise(done => {
  const begun = Date.now();
  const look = () => {
    const found = document.querySelectorAll('#search-results li').length;
    if (found || Date.now() - begun > 10000) done(found); else setTimeout(look, 50);
  };
  look();
})
"""
BARRIERS = """
axe.run(document, {resultTypes: ['violations']}).then(found => found.violations.flatMap(
  rule => rule.nodes.map(node => `${rule.id} (${rule.impact}): ${node.target}: ${node.failureSummary}`)))
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if there := os.environ.get("AIOLOCKS_SITE"):
        return Path(there)
    if missing := [name for name in ("furo", "myst_parser", "sphinx") if find_spec(name) is None]:
        pytest.skip(f"the group docs is not installed: {', '.join(missing)}")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, ".docs/make.py", folder], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def pages(site: Path) -> list[str]:
    return sorted(str(path.relative_to(site)) for path in site.rglob("*.html") if "_static" not in path.parts)


class Page(HTMLParser):
    """What a page of the site refers to, and what can be referred to in it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("href", "src") and value:
                self.targets.append(value)
            elif name == "id" and value:
                self.anchors.add(value)


def test_each_link_of_the_site_leads_to_a_file_and_a_place_in_it(site: Path) -> None:
    read = {name: Page(site.joinpath(name).read_text(encoding="utf-8")) for name in pages(site)}
    dead = []
    for name, page in read.items():
        for target in page.targets:
            split = urlsplit(target)
            if split.scheme:
                continue
            there = os.path.normpath(Path(name).parent / unquote(split.path)) if split.path else name
            anchor = unquote(split.fragment)
            if not site.joinpath(there).is_file() or (anchor and there in read and anchor not in read[there].anchors):
                dead.append(f"{name}: {target}")
    assert dead == []


def test_llms_txt_names_pages_that_exist(site: Path) -> None:
    listed = site.joinpath("llms.txt").read_text(encoding="utf-8")
    targets = [line.partition("](")[2].partition(")")[0] for line in listed.splitlines() if line.startswith("- [")]
    assert [target for target in targets if not site.joinpath(target).is_file()] == []
    assert {"index.md", "recipes.md", "operations.md", "reference/Lock.html"} <= {*targets}


def test_lock_comes_first_in_the_reference_and_its_sentence_before_its_signature(site: Path) -> None:
    text = site.joinpath("reference", "Lock.html").read_text(encoding="utf-8")
    sentence = "A mutex shared by every process that uses the same Redis and name"
    article = text[text.index("<article") :]
    assert 0 < article.index(sentence) < article.index('id="aiolocks.Lock"')
    assert article.count(sentence) == 1
    group = site.joinpath("reference", "locks.html").read_text(encoding="utf-8")
    listed = group[group.index("<article") :]
    assert listed.index("Lock.html") < listed.index("Semaphore.html")


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    class Silent(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *said: Any) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Silent, directory=str(site))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def tab() -> Iterator[Browser]:
    chromium = find_chromium()
    if chromium is None:
        pytest.skip("no chromium on PATH, so the site was not seen in a browser")
    with browser(chromium) as opened:
        yield opened


@pytest.mark.slow
@pytest.mark.timeout(170)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("folder", ["", "reference", "source"])
def test_no_page_overflows_or_misses_a_picture(folder: str, width: int, site: Path, address: str, tab: Browser) -> None:
    tab.resize(width)
    looked_at = [name for name in pages(site) if name.rpartition("/")[0].partition("/")[0] == folder]
    assert looked_at
    wrong = []
    for name in looked_at:
        tab.open(f"{address}/{name}")
        beyond, broken = tab.run(f"[{BEYOND}, {BROKEN}]")
        if beyond > 0 or broken:
            wrong.append((name, beyond, broken))
        if shown := os.environ.get("AIOLOCKS_SCREENSHOTS"):
            picture = Path(shown, str(width), name).with_suffix(".png")
            picture.parent.mkdir(parents=True, exist_ok=True)
            picture.write_bytes(base64.b64decode(tab.screenshot()))
    assert wrong == []


@pytest.mark.slow
@pytest.mark.parametrize("word", SEARCHED)
def test_the_search_finds(word: str, address: str, tab: Browser) -> None:
    tab.open(f"{address}/search.html?q={word}")
    assert tab.run(FOUND) > 0


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", JUDGED)
def test_a_page_has_no_barriers(name: str, scheme: str, address: str, tab: Browser) -> None:
    script = axe()
    if script is None:
        pytest.skip("axe-core-python is not installed (the group docs)")
    tab.resize(WIDTHS[-1])
    tab.prefer(scheme)
    tab.open(f"{address}/{name}")
    tab.run(script + "; null")
    assert tab.run(BARRIERS) == []

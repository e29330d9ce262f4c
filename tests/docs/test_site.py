"""The documentation site builds without the network and needs none: no outside asset, no dead link, no lost drawing."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from browser import CHROMIUM, WITHOUT, open_tab
from lab.figures.canvas import COLOURS

ROOT = Path(__file__).parents[2]
NOWHERE = "http://127.0.0.1:9"
"""A proxy that answers nothing: whoever asks the network fails."""
LOADED = {
    "script": "src",
    "link": "href",
    "img": "src",
    "source": "src",
    "iframe": "src",
    "use": "href",
    "object": "data",
}
"""What a browser fetches by itself."""
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason=WITHOUT)
DRAWINGS = sorted(path.stem for path in (ROOT / "docs" / "figures").glob("*.svg"))


class Page(HTMLParser):
    """The addresses that a page loads or links to, and the places in it that one can link to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.linked: list[str] = []
        self.anchors: set[str] = set()
        self.labels: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        if tag in LOADED and LOADED[tag] in found:
            self.loaded.append(found[LOADED[tag]])
        if tag == "a" and "href" in found:
            self.linked.append(found["href"])
        if "id" in found:
            self.anchors.add(found["id"])
        if tag == "svg" and "aria-label" in found:
            self.labels.append(found["aria-label"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` does, with no way to the network."""
    folder = tmp_path_factory.mktemp("site")
    offline = {"http_proxy": NOWHERE, "https_proxy": NOWHERE, "NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    result = subprocess.run(command, cwd=ROOT, env=os.environ | offline, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    """Every page but the one for a missing page, whose links are those of a server's root."""
    files = [path for path in site.rglob("*.html") if path.name != "404.html"]
    return {path.resolve(): Page(path.read_text(encoding="utf-8")) for path in files}


def is_outside(address: str) -> bool:
    return bool(urlsplit(address).netloc)


def test_the_reader_of_pages_sees_what_is_loaded_and_what_is_linked() -> None:
    page = Page('<img src="https://a.b/c.png"><script src="//a.b/d.js"></script><a href="e.html#f" id="g">h</a>')
    assert [is_outside(address) for address in page.loaded] == [True, True]
    assert (page.linked, page.anchors) == (["e.html#f"], {"g"})
    assert not is_outside("assets/style.css")


def test_every_page_is_on_the_site(site: Path) -> None:
    wanted = {path.stem for path in (ROOT / "docs").glob("*.md")} | {"contributing", "changelog"}
    assert wanted == {path.stem for path in site.glob("*.html")} - {"404"}
    notebooks = {path.stem for path in (ROOT / "docs" / "notebooks").glob("*.ipynb")}
    assert notebooks == {path.stem for path in (site / "notebooks").glob("*.html")}


def test_nothing_is_loaded_from_elsewhere(site: Path, pages: dict[Path, Page]) -> None:
    loaded = [address for page in pages.values() for address in page.loaded]
    assert len(loaded) > 2 * len(pages)
    assert [address for address in loaded if is_outside(address)] == []
    for style in site.rglob("*.css"):
        text = style.read_text(encoding="utf-8")
        fetched = re.findall(r"url\(\s*['\"]?([^'\")]+)|@import\s+['\"]([^'\"]+)", text)
        assert [address for pair in fetched for address in pair if is_outside(address)] == [], style.name


def test_every_link_inside_the_site_leads_somewhere(pages: dict[Path, Page]) -> None:
    dead = []
    for file, page in pages.items():
        for address in [*page.loaded, *page.linked]:
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                continue
            target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            lost = parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors
            if not target.exists() or (lost and parts.fragment != "__skip"):
                dead.append(f"{file.name} -> {address}")
    assert dead == []


@needs_browser
def test_the_site_is_searched_from_the_disk_and_fits_a_phone(site: Path, tmp_path: Path) -> None:
    with open_tab(tmp_path) as tab:
        tab.resize(1200, 900)
        tab.open(f"file://{site}/index.html")
        tab.run("document.querySelector('.md-search__input').focus()")
        tab.call("Input.insertText", text="lookahead")
        tab.wait("document.querySelectorAll('.md-search-result__item').length > 0")
        found = tab.run("[...document.querySelectorAll('.md-search-result__item a')].map(link => link.href).join()")
        assert "training.html" in found
        tab.open(f"file://{site}/leaderboard.html")
        rows = "[...document.querySelector('.sortable table').tBodies[0].rows]"
        for direction in (-1, 1):
            tab.click(".sortable th:nth-child(5)")
            shares = tab.run(f"{rows}.map(row => parseFloat(row.cells[4].innerText))")
            assert shares == sorted(shares, key=lambda share: direction * share)
        tab.resize(400, 800, dark=True)
        wide = []
        for page in sorted(set(site.rglob("*.html")) - {site / "404.html"}):  # whose links are those of a server's root
            tab.open(f"file://{page}")
            if tab.run("document.documentElement.scrollWidth") > 400:
                wide.append(page.name)
        assert wide == []
        assert tab.complaints == []


def test_no_item_of_a_list_has_run_into_a_paragraph(pages: dict[Path, Page]) -> None:
    lost = re.compile(r"<p>(?:(?!</p>).)*\n *(?:[-*]|\d\.) +(?:<strong>|[A-Z])", re.S)
    assert lost.search("<p>first\n2. <strong>Second</strong></p>")
    assert [path.name for path in pages if lost.search(path.read_text(encoding="utf-8"))] == []


def test_every_drawing_is_in_a_page_in_the_colours_of_the_theme(site: Path, pages: dict[Path, Page]) -> None:
    labels = [label for page in pages.values() for label in page.labels]
    assert len(labels) == len(DRAWINGS)
    assert all(len(label) > 20 for label in labels)  # what a reader hears who cannot see it
    html = "".join(path.read_text(encoding="utf-8") for path in pages)
    drawn = "".join(re.findall(r'<div class="figure">.*?</div>', html, re.S))
    assert drawn.count("<svg") == len(DRAWINGS)
    assert [name for name, colour in COLOURS.items() if colour in drawn] == []
    assert set(re.findall(r"var\(--figure-([\w-]+)\)", drawn)) <= COLOURS.keys()


def test_every_colour_has_a_light_and_a_dark_value() -> None:
    light, _, dark = (
        (ROOT / "docs" / "site.css").read_text(encoding="utf-8").partition('[data-md-color-scheme="slate"]')
    )
    for name, colour in COLOURS.items():
        assert f"--figure-{name}: {'var(--md-default-bg-color)' if name == 'paper' else colour};" in light
        assert f"--figure-{name}: " in dark

"""The page in a real browser: choose, attack, upload, by mouse and by keys, wide and narrow, light and dark."""

import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest

from bronet.certificates.run import certify_run
from bronet.pretrained import find_network, unpack
from bronet.report import write_comparison, write_report
from bronet.report.evidence import read_evidence
from browser import CHROMIUM, WITHOUT, Tab, open_tab
from serving import HOST, Site, make_colour_run, serving, started
from tiny_run import train_tiny_run
from web_files import encoded, noise_image

needs_browser = pytest.mark.skipif(CHROMIUM is None, reason=WITHOUT)
pytestmark = pytest.mark.usefixtures("one_thread")
READABLE = 4.5
"""Least contrast of text that the accessibility guidelines (WCAG, AA) ask for."""
VERDICT = "document.getElementById('verdict').textContent"
NOISE = "document.getElementById('noise-after').getAttribute('src')"
WIDE, PHONE = (1200, 900), (360, 740)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("runs")
    digits = train_tiny_run(folder / "digits")
    certify_run(digits, limit=40)
    with serving([digits, make_colour_run(folder / "colours")]) as site:
        yield site


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    with open_tab(tmp_path_factory.mktemp("profile")) as tab:
        yield tab


@pytest.fixture
def tab(browser: Tab, site: Site) -> Tab:
    """Return the page, freshly opened, with the first sample shown."""
    browser.resize(*WIDE)
    browser.complaints.clear()
    browser.requests.clear()
    browser.open(site.address)
    browser.wait(NOISE)
    return browser


def chosen(tab: Tab) -> int:
    """Return which sample is marked."""
    marked = (
        "[...document.querySelectorAll('.sample')].findIndex(tile => tile.getAttribute('aria-selected') === 'true')"
    )
    return int(tab.run(marked))


@needs_browser
def test_a_click_shows_what_is_proved_and_nothing_is_fetched_from_elsewhere(tab: Tab, site: Site) -> None:
    tab.click(".sample:nth-child(4)")
    tab.wait("state.chosen.sample === 3")
    proof = site.ask("/api/runs/0/proof", {"sample": 3}).json
    shown = float(tab.text("#radius"))
    assert proof["radius"] - 1e-4 <= shown <= proof["radius"]  # rounded down
    assert tab.text("#prediction") == str(proof["prediction"])
    assert len(tab.run("[...document.querySelectorAll('#rivals tr')].map(row => row.innerText)")) == 9
    tab.wait(NOISE)
    assert tab.text("#noise-answer") == f"provably still {proof['prediction']}"
    assert all(request.startswith((site.address, "data:")) for request in tab.requests)
    assert tab.complaints == []


@needs_browser
def test_samples_are_walked_through_by_keys(tab: Tab) -> None:
    tab.run("document.querySelector('.sample[tabindex=\"0\"]').focus()")
    columns = tab.run(
        "[...document.querySelectorAll('.sample')].filter(tile => tile.offsetTop === "
        "document.querySelector('.sample').offsetTop).length"
    )
    for key, expected in (
        ("ArrowRight", 1),
        ("ArrowDown", 1 + columns),
        ("ArrowLeft", columns),
        ("End", 39),
        ("Home", 0),
    ):
        tab.press(key)
        tab.wait(f"state.chosen.sample === {expected}")
        assert chosen(tab) == expected
        assert tab.run("document.activeElement.getAttribute('aria-selected')") == "true"


@needs_browser
def test_an_attack_inside_the_radius_fails_on_the_page(tab: Tab) -> None:
    assert "inside the radius" in tab.text("#budget-side")
    tab.click("#go")
    assert tab.wait(VERDICT).startswith("Failed, as it must: within ")
    assert tab.run("document.getElementById('found').hidden")
    assert tab.run("document.querySelectorAll('.band-broken')[0].getAttribute('width')") == "0"
    assert tab.complaints == []


@needs_browser
def test_an_attack_beyond_the_radius_draws_the_strip_between_proof_and_attack(tab: Tab) -> None:
    tab.run("setBudget(state.end = Number(document.getElementById('budget').max = 4))")
    assert "beyond the radius" in tab.text("#budget-side")
    tab.run("document.getElementById('budget').focus()")
    tab.press("Enter")  # the key works from the slider
    assert tab.wait(VERDICT).startswith("Found: ")
    assert not tab.run("document.getElementById('found').hidden")
    proved, unknown, broken = (
        float(tab.run(f"document.querySelector('.band-{kind}').getAttribute('width')"))
        for kind in ("proved", "open", "broken")
    )
    radius, found = tab.run("[state.proof.radius, state.found]")
    assert proved > 0
    assert unknown / proved == pytest.approx((found - radius) / radius, rel=1e-6)
    assert broken > 0
    assert "another answer was found at" in tab.run("document.getElementById('ruler').getAttribute('aria-label')")


@needs_browser
def test_a_bad_file_gets_a_sentence_and_the_image_stays(tab: Tab, tmp_path: Path) -> None:
    before = tab.text("#radius")
    bad = tmp_path / "holiday.png"
    bad.write_text("not a picture")
    tab.give_file("#file", bad)
    tab.wait("!document.getElementById('trouble').hidden")
    assert "PNG" in tab.text("#trouble")
    assert tab.text("#radius") == before
    tab.wait(NOISE)
    tab.run(
        "(() => { const dataTransfer = new DataTransfer(); dataTransfer.items.add(new File([], 'empty.png'));"
        "window.dispatchEvent(new DragEvent('drop', { dataTransfer, cancelable: true })); })()"
    )
    tab.wait("document.getElementById('trouble').textContent === 'This file is empty; choose an image.'")
    tab.click(".sample:nth-child(2)")
    tab.wait("state.chosen.sample === 1")
    assert tab.run("document.getElementById('trouble').hidden")


@needs_browser
def test_an_image_of_ones_own_is_a_prediction_and_can_be_attacked(tab: Tab, tmp_path: Path) -> None:
    own = tmp_path / "own.jpg"
    own.write_bytes(encoded(noise_image((3, 90, 120)), "JPEG"))
    tab.give_file("#file", own)
    tab.wait("state.chosen.image")
    assert chosen(tab) == -1
    assert tab.text("#truth").startswith("A prediction")
    tab.click("#go")
    assert tab.wait(VERDICT).startswith("Failed, as it must")
    tab.run("openRun(1)")  # the same file, for another network
    tab.wait("state.proof.rivals.length === 2 && state.chosen.image")
    assert "class" in tab.text("#prediction")
    assert "No sample images" in tab.text("#samples-remark")
    assert "not certified yet" in tab.text("#curve-legend")
    assert tab.complaints == []


@needs_browser
@pytest.mark.parametrize("dark", [False, True])
def test_a_narrow_window_needs_no_scrolling_sideways(tab: Tab, dark: bool) -> None:
    tab.resize(*PHONE, dark=dark)
    tab.run("document.querySelector('details').open = true")
    assert tab.run("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    small = "[...document.querySelectorAll('button')].filter(button => button.offsetHeight && button.offsetHeight < 40)"
    assert tab.run(f"{small}.length") == 0
    assert tab.run("getComputedStyle(document.body).backgroundColor") == (
        "rgb(18, 22, 30)" if dark else "rgb(255, 255, 255)"
    )


@needs_browser
@pytest.mark.parametrize("dark", [False, True])
def test_a_report_and_a_comparison_need_no_scrolling_sideways(browser: Tab, tmp_path: Path, dark: bool) -> None:
    """Only tables of many columns scroll, each for itself; commands are wrapped."""
    runs = [unpack(find_network("bronet-digits/digits"), tmp_path / name) for name in ("first", "second")]
    for run in runs:
        certify_run(run, limit=100)
    write_report(runs[0].path)
    write_comparison([read_evidence(run) for run in runs], tmp_path / "report")
    browser.resize(*PHONE, dark=dark)
    for page in (runs[0].report / "report.html", tmp_path / "report" / "comparison.html"):
        browser.open(f"file://{page}")
        assert browser.run("document.documentElement.scrollWidth") <= PHONE[0]
        assert browser.run("[...document.querySelectorAll('pre')].every(box => box.scrollWidth <= box.clientWidth)")
        ground = browser.run("getComputedStyle(document.body).backgroundColor")
        assert (max(map(int, re.findall(r"\d+", ground))) < 128) == dark


@needs_browser
def test_a_change_is_drawn_by_mouse_and_by_keys(tab: Tab) -> None:
    tab.click("#pad")  # the cell in the middle
    tab.wait("!pad.waiting && document.querySelectorAll('.lighter').length === 1")
    assert "Inside the radius" in tab.wait("at('hand-words').textContent")
    tab.click("input[name=brush][value='-1']")
    tab.run("document.getElementById('pad').focus()")
    for key in ("ArrowLeft", "ArrowUp", "Enter"):
        tab.press(key)
    tab.wait("!pad.waiting && document.querySelectorAll('.darker').length === 1")
    assert tab.run("[pad.row, pad.column]") == [3, 3]
    tab.run("document.getElementById('hand-eps').focus()")
    tab.press("PageUp")
    assert "beyond" in tab.run("document.getElementById('hand-eps').getAttribute('aria-valuetext')")
    tab.click("#hand-clear")
    assert tab.run("document.querySelectorAll('.lighter, .darker').length") == 0
    assert tab.text("#hand-says") == tab.text("#prediction")
    assert tab.complaints == []


@needs_browser
def test_two_networks_are_compared_by_keys_alone(browser: Tab, tmp_path: Path) -> None:
    run = unpack(find_network("bronet-digits/digits"), tmp_path / "digits")
    with serving([run.path]) as site:
        browser.resize(*WIDE)
        browser.complaints.clear()
        browser.open(site.address)
        browser.wait(NOISE)
        outcomes = "document.querySelectorAll('.opponent.fell').length"
        assert browser.run(outcomes) == 1
        assert browser.run("document.getElementById('ordinary-side').className") == "opponent fell"
        assert browser.run("document.getElementById('certified-side').className") == "opponent held"
        assert browser.text("#certified-says") == browser.text("#prediction")
        assert browser.text("#ordinary-says") != browser.text("#prediction")
        browser.run("document.getElementById('duel-budget').focus()")
        for _ in range(5):  # far beyond the radius, both fall
            browser.press("PageUp")
        browser.wait(f"{outcomes} === 2")
        assert "beyond" in browser.text("#duel-words")
        for _ in range(51):  # just inside the radius
            browser.press("ArrowLeft")
        browser.wait(f"{outcomes} === 1")
        assert browser.complaints == []


@needs_browser
def test_a_page_that_closes_during_a_search_leaves_nothing_in_the_log(browser: Tab, tmp_path: Path) -> None:
    with started(tmp_path) as process:
        for _ in range(5):
            browser.open(f"http://{HOST}:{process.port}/")
            browser.wait("state.proof !== null")
            browser.run("at('budget').max = 4, setBudget(4), void runAttack()")
            browser.wait("at('progress').value > 0 || at('verdict').textContent")
            browser.open("about:blank")
        assert process.ask("/")[0] == 200
        process.end()
        assert process.log() == "interrupted\n"


def luminance(colour: str) -> float:
    shares = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    red, green, blue = (share / 12.92 if share <= 0.03928 else ((share + 0.055) / 1.055) ** 2.4 for share in shares)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_text_can_be_read_on_every_ground(theme: int) -> None:
    style = files("bronet.web").joinpath("page.css").read_text(encoding="utf-8")
    colours = dict(re.findall(r"--([\w-]+): (#\w{6});", re.findall(r":root \{(.*?)\}", style, re.S)[theme]))
    pairs = [(text, ground) for text in ("ink", "quiet", "accent") for ground in ("paper", "card")]
    pairs += [("ink", "wash"), ("ink", "warm-wash"), ("on-accent", "accent")]
    for text, ground in pairs:
        dim, bright = sorted((luminance(colours[text]), luminance(colours[ground])))
        assert (bright + 0.05) / (dim + 0.05) >= READABLE, f"{text} on {ground}"

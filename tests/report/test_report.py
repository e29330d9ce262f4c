"""The report: reads a run folder only, writes every file whole, escapes everything, refuses contradictions."""

import json
import re
import shutil
from dataclasses import replace
from fractions import Fraction
from html.parser import HTMLParser
from pathlib import Path

import pytest

from attacks import ATTACK, finished, write_attack_facts
from bronet.cli.console import show_comparison
from bronet.data import load_images
from bronet.errors import BronetError
from bronet.files import Json, sealed
from bronet.recipe import named_recipe, override
from bronet.recipe.schema import DataRecipe
from bronet.records import write_rows
from bronet.report import write_comparison, write_report
from bronet.report.evidence import at_radii, read_evidence
from bronet.report.figures import curve_chart, draw_margins, margins_chart, signed_margins, ticks
from bronet.report.gallery import choose_groups
from bronet.report.table import csv_table, difference_cells, json_summary, markdown_table, setting_cells, table_cells
from bronet.run.attack_rows import AttackRow
from bronet.run.certificate import Row
from bronet.run.folder import create_run
from bronet.wording import bound_text
from certificates import CERTIFICATE, edit_certificate, write_certificate


def _make_run(parent: Path) -> Path:
    folder = parent / "first"
    folder.mkdir()
    radii = [(True, 0.25), (True, 0.5), (False, 2.0), (True, 1.0)]
    rows = (
        Row(
            index=index,
            label=0,
            prediction=int(not correct),
            correct=correct,
            margin=radius,
            radius=radius,
            naive_radius=radius,
        )
        for index, (correct, radius) in enumerate(radii)
    )
    write_rows(Row, folder / "certificate.csv", rows)
    write_certificate(folder)
    (folder / "recipe.yaml").write_text("name: first # <script>alert('no')</script>\n")
    record: Json = {"command": "bronet train digits", "seed": 0, "commit": None}
    (folder / "record.json").write_text(json.dumps(sealed(record)))
    (folder / "log.jsonl").write_text('{"epoch": 1, "loss": 2.0}\n{"epoch": 2, "loss": 0.5}\n')
    return folder


def written(run: Path) -> dict[str, Path]:
    """Write the report of a run, and return its files by their names."""
    return {path.name: path for path in write_report(run)}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return _make_run(tmp_path)


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A report that tests only read: drawing takes most of a test's time."""
    return written(_make_run(tmp_path_factory.mktemp("reported")))


class _Page(HTMLParser):
    """Collects tags, attributes and text, and checks that every tag is closed."""

    VOID = frozenset({"meta", "img", "br"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.links: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in {"src", "href", "srcset"}]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def _parsed(path: Path) -> _Page:
    page = _Page()
    page.feed(path.read_text(encoding="utf-8"))
    page.close()
    assert page.open == []
    return page


def test_all_files_are_written_and_nothing_else(reported: dict[str, Path]) -> None:
    folder = reported["report.html"].parent
    names = {path.name for path in folder.iterdir()}
    pictures = {f"{stem}.{kind}" for stem in ("curve", "margins") for kind in ("png", "pdf")}
    assert names == pictures | {"report.html", "summary.md", "summary.json", "summary.csv"}
    assert reported.keys() == names
    assert all(path.stat().st_size > 0 for path in reported.values())
    inputs = {"certificate.csv", "certificate.json", "recipe.yaml", "record.json", "log.jsonl"}
    assert {path.name for path in folder.parent.iterdir()} == inputs | {"report"}


def test_the_page_holds_everything_and_loads_nothing(reported: dict[str, Path]) -> None:
    page = _parsed(reported["report.html"])
    assert page.links == []
    assert "script" not in page.tags
    assert "b" not in page.tags
    for expected in (
        "clean accuracy75.0 %",
        "certified at ε\u00a0=\u00a01/450.0 %",
        "<script>alert('no')</script>",
        "<b>Conv</b>",
        "bronet train digits",
        "bronet certify runs/first --eps 1/4 --eps 1/2",
        "2 epochs logged",
        "ab" * 32,
    ):
        assert expected in page.text


def test_a_hostile_run_name_is_only_text(run: Path) -> None:
    hostile = run.rename(run.with_name("<img src=x onerror=a> $name | x"))
    paths = written(hostile)
    page = _parsed(paths["report.html"])
    assert "img" not in page.tags
    assert "<img src=x onerror=a> $name | x" in page.text
    first_table = paths["summary.md"].read_text().partition("\n\n")[0]
    columns = {len(re.findall(r"(?<!\\)\|", line)) for line in first_table.splitlines()}
    assert len(columns) == 1


@pytest.fixture
def digits(tmp_path: Path) -> Path:
    """The first 40 test images of the digits, every tenth taken for another digit; the radius is index / 100."""
    folder = tmp_path / "some"
    create_run(folder, named_recipe("digits/quickstart"))
    _write_digits(folder, [index / 100 for index in range(40)])
    return folder


def _write_digits(folder: Path, radii: list[float]) -> None:
    labels = load_images(DataRecipe(name="digits"), "test").labels.tolist()
    rows = []
    for index, radius in enumerate(radii):
        correct, label = index % 10 != 7, labels[index]
        prediction = label if correct else (label + 1) % 10
        rows.append(
            Row(
                index=index,
                label=label,
                prediction=prediction,
                correct=correct,
                margin=radius,
                radius=radius,
                naive_radius=radius,
            )
        )
    write_rows(Row, folder / "certificate.csv", rows)
    names = tuple(f"digit {number}" for number in range(10))
    write_certificate(folder, replace(CERTIFICATE, images=len(rows), classes=names, eps=("0.105", "0.2")))


def test_the_gallery_shows_the_extremes_the_misses_and_the_closest_attacks(digits: Path) -> None:
    label = read_evidence(digits).rows[39].label
    found = AttackRow(
        index=39, label=label, prediction=label, found=(label + 1) % 10, robust=False, l2=0.5, linf=0.1, radius=0.39
    )
    facts = replace(ATTACK, eps="1/2")
    write_rows(AttackRow, facts.files(digits).rows, [found, replace(found, index=38, found=label, robust=True)])
    write_attack_facts(digits, facts)
    evidence = read_evidence(digits)
    assert evidence.closest == {39: found}
    largest, smallest, missed, mistaken = ([row.index for row in rows] for rows in choose_groups(evidence).values())
    assert largest == [39, 38, 36, 35, 34, 33, 32, 31]
    assert smallest == [0, 1, 2, 3, 4, 5, 6, 8]
    assert missed == [10, 9, 8, 6, 5, 4, 3, 2]
    assert mistaken == [37, 27, 17, 7]
    page = _parsed(written(digits)["report.html"])
    assert len(page.links) == 8 + 8 + 8 + 4
    assert all(link.startswith("data:image/png;base64,") for link in page.links)
    assert f"digit {(label + 1) % 10} at 0.5000" in page.text


def test_images_of_another_data_set_are_not_shown(digits: Path) -> None:
    rows = read_evidence(digits).rows
    other = [replace(row, label=(row.label + 5) % 10, prediction=(row.prediction + 5) % 10) for row in rows]
    write_rows(Row, digits / "certificate.csv", other)
    write_certificate(digits, replace(CERTIFICATE, images=len(rows)))
    page = _parsed(written(digits)["report.html"])
    assert page.links == []
    assert "labels differ" in page.text


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"command": "bronet certify runs/x --limit 40"}, "the first 40 test images only"),
        ({"command": "certify_run"}, "the first 40 test images only"),
        ({"data": "mine"}, "all 40 test images"),
        ({"split": "sample"}, "a sample of 40 test images"),
    ],
)
def test_a_part_of_the_images_is_called_a_part(digits: Path, change: dict[str, str], words: str) -> None:
    evidence = read_evidence(digits)
    assert replace(evidence, certificate=replace(evidence.certificate, **change)).images == words


def test_several_runs_are_set_side_by_side_on_one_page(digits: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    create_run(other, override(named_recipe("digits/quickstart"), ["train.epochs=3"]))
    _write_digits(other, [0.15] * 40)
    runs = at_radii([read_evidence(digits), read_evidence(other)])
    assert difference_cells(runs) == [
        ["proved by", "ε = 0.105", "ε = 0.2"],
        ["all runs", "65.0 %", "0.0 %"],
        ["some alone", "0.0 %", "42.5 %"],
        ["other alone", "25.0 %", "0.0 %"],
        ["none", "10.0 %", "57.5 %"],
    ]
    assert [line[0] for line in setting_cells(runs)] == ["setting", "train.epochs"]
    page = _parsed(write_comparison(runs, tmp_path / "report")[0])
    assert len(page.links) == 8
    assert "train.epochs" in page.text
    shorter = replace(runs[1], rows=runs[1].rows[:30])
    assert difference_cells([runs[0], shorter]) == []


def test_a_chart_draws_each_corner_and_a_few_round_ticks() -> None:
    assert ticks(0.0, 1.3) == [0.0, 0.5, 1.0]
    assert ticks(-0.02, 0.03) == [-0.02, -0.01, 0.0, 0.01, 0.02, 0.03]
    rows = [
        Row(index=0, label=0, prediction=0, correct=True, margin=1.0, radius=0.5, naive_radius=0.5),
        Row(index=1, label=0, prediction=0, correct=True, margin=1.0, radius=1.0, naive_radius=1.0),
    ]
    assert f'd="M0 0H{2000 / 2.08:.0f}V1000H{2000 / 1.04:.0f}V2000H2000V2000"' in curve_chart({"a": rows}, [0.25])
    assert margins_chart({"none": []}) == ""


def test_the_summary_has_every_digit(reported: dict[str, Path]) -> None:
    content = json.loads(reported["summary.json"].read_text())
    assert content["clean_accuracy"] == 0.75
    assert content["certified_accuracy"] == {"1/4": 0.5, "1/2": 0.25}
    assert content["radius"]["median"] == 0.5
    assert content["lipschitz"] == CERTIFICATE.lipschitz
    assert content["record"]["seed"] == 0


def test_numbers_that_do_not_exist_are_null(run: Path) -> None:
    row = Row(index=0, label=0, prediction=1, correct=False, margin=1.0, radius=1.0, naive_radius=1.0)
    write_rows(Row, run / "certificate.csv", [row])
    write_certificate(run, replace(CERTIFICATE, images=1))
    text = json_summary(read_evidence(run))
    content = json.loads(text, parse_constant=pytest.fail)
    assert content["radius"] == {"median": None, "variance": None, "skewness": None}


def test_tables_of_two_runs_share_their_columns(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = read_evidence(run)
    other = run.rename(run.with_name("second"))
    write_certificate(other, replace(CERTIFICATE, eps=("0.1",)))
    first, second = at_radii([one, read_evidence(other)])
    assert markdown_table(table_cells([first, second])) == (
        "| run | images | clean | ε = 0.1 | ε = 1/4 | ε = 1/2 "
        "| median radius | variance | skewness | L before the head |\n"
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n"
        "| first | 4 | 75.0 % | 75.0 % | 50.0 % | 25.0 % | 0.5000 | 0.0972 | 0.3818 | 1.023457 |\n"
        "| second | 4 | 75.0 % | 75.0 % | 50.0 % | 25.0 % | 0.5000 | 0.0972 | 0.3818 | 1.023457 |\n"
    )
    show_comparison(table_cells([first, second]))
    text = capsys.readouterr().out
    assert "second" in text
    assert "50.0 %" in text
    assert len(csv_table([first, second]).splitlines()) == 7


@pytest.mark.parametrize("value", [1.0, 1.0 + 2**-52, 1.0 + 1e-9, 1.0234567891, 0.9999999999, 17.3, 123456789.1])
def test_a_printed_bound_is_never_smaller_than_the_bound(value: float) -> None:
    printed = sum(Fraction(part) for part in bound_text(value).split(" + "))
    assert printed >= Fraction(value)
    assert printed <= Fraction(value) * (1 + Fraction(1, 10**6))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"images": 5}, "one row for each of the 5 images"),
        ({"images": float("inf")}, "images must be a whole number, got inf"),
        ({"images": 0}, "images must be at least 1, got 0"),
        ({"pixels": True}, "pixels must be a whole number, got True"),
        ({"lipschitz": "1.0"}, "lipschitz must be a number, got '1.0'"),
        ({"lipschitz": float("nan")}, "lipschitz must be at least 0, got nan"),
        ({"eps": [0.25]}, r"eps\[0\] must be text, got 0.25"),
        ({"eps": ["a/b"]}, "eps must be a number or fraction"),
        ({"rounding": 1e-11}, "rounding must be a table of settings, got 1e-11"),
        ({"layers": [{"name": "stem"}]}, r"layers\[0\].kind is missing"),
        ({"command": None}, "command is missing"),
        ({"lipshitz": 1.0}, "unknown certificate key lipshitz; did you mean lipschitz"),
    ],
)
def test_a_certificate_that_cannot_be_right_is_refused(run: Path, change: dict[str, object], message: str) -> None:
    edit_certificate(run / "certificate.json", **change)
    with pytest.raises(BronetError, match=message) as error:
        write_report(run)
    assert "\n" not in str(error.value)
    assert not (run / "report").exists()


def test_an_edited_certificate_is_refused(run: Path) -> None:
    path = run / "certificate.json"
    path.write_text(path.read_text().replace("1.0234567891", "1.0000000000"))
    with pytest.raises(BronetError, match=r"seal of .*certificate\.json differs"):
        write_report(run)


@pytest.mark.parametrize("name", ["certificate.csv", "certificate.json", "recipe.yaml"])
def test_a_missing_file_is_one_clear_line(run: Path, name: str) -> None:
    (run / name).unlink()
    with pytest.raises(BronetError, match=re.escape(name)):
        write_report(run)


def test_record_and_log_are_optional(run: Path) -> None:
    (run / "record.json").unlink()
    (run / "log.jsonl").unlink()
    assert "epochs logged" not in _parsed(written(run)["report.html"]).text


def test_the_summary_has_the_papers_line_classes_attacks_and_the_naive_way(run: Path) -> None:
    cost = replace(CERTIFICATE.soundness_cost, relative_median=1e-4)
    certificate = replace(CERTIFICATE, classes=("zero", "one"), soundness_cost=cost)
    write_certificate(run, certificate)
    write_attack_facts(run, finished(ATTACK, 4, clean=0.75, robust=0.5, certified=0.5))
    write_attack_facts(run, replace(ATTACK, eps="1/2"))  # not finished
    paths = written(run)
    text = paths["summary.md"].read_text()
    assert "(clean, 1/4, 1/2): **75.0 / 50.0 / 25.0**" in text
    assert "| zero | 4 | 75.0 | 50.0 | 25.0 | 0.5000 |" in text
    assert text.count("| pgd | l2 | 1/4 | 4 | 75.0 % | 50.0 % | 50.0 % |") == 1
    assert "0.01 % of the radius" in text
    write_certificate(run, replace(certificate, soundness_cost=replace(cost, relative_median=-1e-4)))
    assert "0.01 % more radius" in written(run)["summary.md"].read_text()
    content = json.loads(paths["summary.json"].read_text())
    assert content["naive"]["label"].startswith("not a proof")
    assert content["implied"]["median_l1"] == 0.5
    assert 0.0624 < content["implied"]["median_linf"] <= 0.0625
    assert content["classes"]["zero"]["images"] == 4


def test_margin_histograms_show_both_splits(run: Path) -> None:
    shutil.copy(run / "certificate.csv", run / "certificate-train.csv")
    evidence = read_evidence(run)
    assert signed_margins(evidence.train_rows).tolist() == [0.25, 0.5, -2.0, 1.0]
    figure = draw_margins({"first": (evidence.train_rows, evidence.rows), "none": ((), ())})
    left, right = figure.axes
    assert left.get_title() == "training images"
    assert len(left.patches) == len(right.patches) == 2
    empty = draw_margins({"none": ((), ())})
    assert "not certified" in {text.get_text() for text in empty.axes[0].texts}

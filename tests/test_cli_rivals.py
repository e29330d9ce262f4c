"""The commands that compare layers: what they write and how they refuse."""

from pathlib import Path

from typer.testing import CliRunner

from bronet.cli import app


def run(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(words))
    return result.exit_code, result.output


def test_lot_condition_writes_rows_and_figures(tmp_path: Path) -> None:
    options = ["--channels", "4", "--steps", "11", "--training-steps", "1", "--out", str(tmp_path)]
    status, output = run("analyze", "lot-condition", *options)
    assert status == 0
    assert {path.name for path in tmp_path.iterdir()} == {
        "lot-condition.csv",
        "lot-condition.png",
        "lot-condition.pdf",
    }
    assert "lot-published" in output


def test_equal_budget_writes_one_table_and_one_plot(tmp_path: Path) -> None:
    options = ["--dataset", "digits", "--steps", "1", "--images", "5", "--layer", "aol", "--out", str(tmp_path)]
    status, _ = run("bench", "equal-budget", *options, "--device", "cpu")
    assert status == 0
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {f"equal-budget.{kind}" for kind in ("csv", "json", "md", "png")}


def test_layer_bench_writes_rows_and_the_three_figures(tmp_path: Path) -> None:
    shape = ["--size", "32", "--width", "2", "--kernel", "3", "--batch", "1", "--repeats", "1"]
    status, _ = run("bench", "layers", *shape, "--layer", "standard", "--out", str(tmp_path), "--device", "cpu")
    assert status == 0
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"layers.csv", "layers.json", "figure-2.png", "figure-5.png", "figure-6.png"}


def test_unknown_layer_is_one_line_and_status_two() -> None:
    for command in (("layers",), ("equal-budget", "--dataset", "digits")):
        status, output = run("bench", *command, "--layer", "sox")
        assert status == 2
        assert "layers must be among bro, soc," in output
        assert len(output.strip().splitlines()) == 1

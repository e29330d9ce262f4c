"""Comparisons of layers: rows, tables and figures of the benches, the growth that Table 8 predicts, equal budgets."""

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import pytest

from bronet import BronetError
from bronet.layers import CONVOLUTIONS
from bronet.layers.rivals.spatial import AOLConv2d
from bronet.records import read_rows
from bronet.report.figures import figure_bytes
from lab.bench import csv_text, equal_budget, json_text, layer_figures, layers
from lab.bench.complexity import LayerShape, layer_cost, lipconvnet_cost, lipconvnet_layers
from lab.bench.timed_training import Budget

PNG = b"\x89PNG"


def test_sweep_measures_every_shape_once_and_draws_it() -> None:
    sweep = layers.Sweep(kinds=("bro", "standard"), sizes=(32,), widths=(2, 4), kernels=(3,), batch=1, repeats=1)
    assert sweep.points() == [(32, 2, 3), (32, 4, 3)]
    rows = list(layers.measure(sweep, device="cpu"))
    assert len(rows) == 4
    for row in rows:
        assert row.train_seconds is not None
        assert row.train_seconds > 0
        assert row.inference_seconds is not None
        assert row.memory_bytes is not None
        assert row.memory_kind == "saved for backward"
    by_width = {row.width: row.memory_bytes for row in rows if row.layer == "standard"}
    assert by_width[4] > by_width[2]
    read = list(csv.DictReader(io.StringIO(csv_text(rows))))
    assert [line["layer"] for line in read] == ["bro", "standard"] * 2
    assert json.loads(json_text(rows, facts={"command": "x"}))["rows"][0]["width"] == 2
    for draw in (layer_figures.figure_2, layer_figures.figure_5, layer_figures.figure_6):
        assert figure_bytes(draw(rows), "png").startswith(PNG)
    growth = layer_figures.growth(rows)
    assert [line[:2] for line in growth] == [["bro", "width 2 -> 4"], ["standard", "width 2 -> 4"]]


def test_rows_read_back_as_they_were_measured(tmp_path: Path) -> None:
    sweep = layers.Sweep(kinds=("standard",), sizes=(32,), widths=(2,), kernels=(3,), batch=1, repeats=1)
    measured = [
        replace(row, train_seconds=seconds) for row in layers.measure(sweep, device="cpu") for seconds in (None, 0.25)
    ]
    path = tmp_path / "layers.csv"
    path.write_text(csv_text(measured))
    assert read_rows(layers.LayerRow, path, advice="measure again") == measured
    path.write_text("layer,size\nbro,32\n")
    with pytest.raises(BronetError, match=r"layers\.csv, line 1: header must be layer,size,width"):
        read_rows(layers.LayerRow, path, advice="measure again")


def test_a_layer_that_fails_costs_its_own_row_only(monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = layers.Sweep(kinds=("standard",), sizes=(32,), widths=(2,), kernels=(3,), batch=2**50, repeats=1)
    (row,) = layers.measure(sweep, device="cpu")  # more images than any memory holds
    assert row.train_seconds is None
    assert row.memory_kind.startswith("failed: ")
    assert figure_bytes(layer_figures.figure_2([row]), "png").startswith(PNG)

    class Refusing(AOLConv2d):
        def reset_parameters(self) -> None:
            raise RuntimeError("CUSOLVER_STATUS_EXECUTION_FAILED\nand where")

    monkeypatch.setitem(CONVOLUTIONS, "aol", Refusing)
    comparison = equal_budget.Comparison(dataset="digits", kinds=("aol", "bro"), budget=Budget(steps=1), images=5)
    failed, kept = equal_budget.compare(comparison, device="cpu")
    assert isinstance(failed, equal_budget.Failure)
    assert failed.layer == "aol"
    assert "CUSOLVER_STATUS_EXECUTION_FAILED" in failed.reason
    assert "and where" not in failed.reason
    assert kept.layer == "bro"


def test_table_8_grows_as_its_formulas_say() -> None:
    small, wide, large = LayerShape(8, 16, 32, 3), LayerShape(8, 16, 64, 3), LayerShape(8, 32, 32, 3)
    for kind in ("standard", "soc", "lot", "cayley", "bro"):
        before, wider, larger = (layer_cost(kind, shape, kappa=0.25) for shape in (small, wide, large))
        assert before is not None
        assert wider is not None
        assert larger is not None
        assert larger.input_macs == 4 * before.input_macs
        assert 4 * before.macs <= wider.macs <= 8 * before.macs
    assert layer_cost("aol", small, kappa=0.25) is None


def test_sweep_varies_one_factor_at_a_time_and_crosses_sizes_with_widths() -> None:
    points = layers.Sweep(sizes=(32, 64), widths=(4, 8), kernels=(3, 5)).points()
    assert points == [(32, 4, 3), (32, 8, 3), (64, 4, 3), (64, 8, 3), (32, 4, 5)]


def test_theory_counts_the_layers_of_a_lipconvnet() -> None:
    shapes = lipconvnet_layers(depth=10, width=32, batch=4, side=32, kernel=3, channels=3)
    assert len(shapes) == 10
    assert [shape.side for shape in shapes] == [32, 16, 16, 8, 8, 4, 4, 2, 2, 1]
    assert shapes[-1].kernel == 1
    soc, standard = (lipconvnet_cost(kind, shapes) for kind in ("soc", "standard"))
    assert soc is not None
    assert standard is not None
    assert soc.input_macs == 6 * standard.input_macs


def test_equal_budget_trains_and_certifies_every_layer_alike() -> None:
    comparison = equal_budget.Comparison(dataset="digits", kinds=("bro", "aol"), budget=Budget(steps=3), images=20)
    rows = list(equal_budget.compare(comparison, device="cpu"))
    assert [row.layer for row in rows] == ["bro", "aol"]
    for row in rows:
        assert row.steps == 3
        assert row.clean >= row.certified_1 >= row.certified_2 >= row.certified_3
    assert equal_budget.markdown(rows).count("\n") == 4
    assert figure_bytes(equal_budget.draw(rows), "png").startswith(PNG)
    assert len(list(csv.DictReader(io.StringIO(csv_text(rows))))) == 2


def test_equal_budget_recipes_differ_in_the_layer_only() -> None:
    comparison = equal_budget.Comparison()
    bro, soc, lipreg = (equal_budget.recipe_of(comparison, kind) for kind in ("bro", "soc", "lipreg"))
    assert bro.optim == soc.optim
    assert bro.loss == soc.loss
    assert (soc.model.backbone, soc.model.width, soc.model.depth) == ("soc", 16, 5)  # type: ignore[union-attr]
    assert lipreg.loss.emma
    assert not soc.loss.emma


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: layers.Sweep(kinds=("sox",)), "must be one of bro, soc, .* got 'sox'"),
        (lambda: layers.Sweep(sizes=()), "sizes must hold at least one value"),
        (lambda: equal_budget.Comparison(dataset="imagenet"), "dataset must be one of cifar10, cifar100, digits"),
        (lambda: equal_budget.Comparison(seed=-1), "seed must satisfy 0 <= seed < 2.63, got -1"),
        (Budget, "budget must be positive and finite seconds or steps"),
        (lambda: Budget(seconds=1.0, steps=2), "budget must be positive and finite seconds or steps"),
        (lambda: Budget(seconds=float("nan")), "budget must be positive and finite seconds or steps, .* got nan"),
        (lambda: Budget(seconds=float("inf")), "budget must be positive and finite seconds or steps, .* got inf"),
    ],
)
def test_bad_settings_are_one_clear_line(make: object, message: str) -> None:
    with pytest.raises(BronetError, match=message):
        make()  # type: ignore[operator]

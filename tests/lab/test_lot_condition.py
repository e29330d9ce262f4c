"""LOT's Newton iteration: what the paper's Figure 13 shows, and why."""

import csv
import io

import torch
from torch.testing import assert_close

from bronet.report.figures import figure_bytes
from lab.analyze import tuples_as_csv
from lab.analyze.lot_condition import FORMS, LOT_RIDGE, LOTConditionSetting, draw, lot_iterates, measure, summary


def test_experiment_gives_rows_for_every_frequency_step_and_form() -> None:
    rows = measure(LOTConditionSetting(channels=4, steps=12, training_steps=2))
    frequencies = {row.frequency for row in rows}
    assert len(rows) == 2 * len(frequencies) * (12 * len(FORMS) + 1)
    assert max(row.condition for row in rows if row.layer == "bro") < 1 + 1e-5
    assert len(list(csv.DictReader(io.StringIO(tuples_as_csv(rows[0]._fields, rows))))) == len(rows)
    assert {line.step for line in summary(rows)} == {0, 10, 12}
    assert figure_bytes(draw(rows), "png").startswith(b"\x89PNG")
    assert figure_bytes(draw(rows), "pdf").startswith(b"%PDF")


def test_every_newton_step_is_a_contraction_in_float64() -> None:
    V = torch.randn(6, 5, 5, dtype=torch.complex128, generator=torch.Generator().manual_seed(0))
    for W in lot_iterates(V, steps=30):
        assert torch.linalg.svdvals(W).max() <= 1 + 1e-12


def test_published_ridge_is_what_keeps_the_limit_from_being_orthogonal() -> None:
    V = torch.diag(torch.tensor([1.0, 0.1, 0.01], dtype=torch.float64))
    *_, plain = lot_iterates(V, steps=60)
    *_, ridged = lot_iterates(V, steps=60, ridge=LOT_RIDGE)
    s = V.diagonal()
    assert_close(plain, torch.eye(3, dtype=torch.float64), atol=1e-9, rtol=0)
    assert_close(ridged.diagonal(), s / (s.square() + LOT_RIDGE).sqrt(), atol=1e-9, rtol=0)

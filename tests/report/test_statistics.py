"""Statistics and the curve: counted by hand, and consistent with each other."""

import math
import statistics as textbook

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bronet.errors import BronetError
from bronet.report.figures import certified_curve, draw_curve, figure_bytes
from bronet.run.certificate import Row, certified_accuracy, compute_statistics, radius_distribution

PNG_SIGNATURE, PDF_SIGNATURE = b"\x89PNG\r\n", b"%PDF-"


def _rows(*images: tuple[bool, float]) -> list[Row]:
    return [
        Row(
            index=index,
            label=0,
            prediction=int(not correct),
            correct=correct,
            margin=radius,
            radius=radius,
            naive_radius=radius,
        )
        for index, (correct, radius) in enumerate(images)
    ]


FOUR = _rows((True, 0.25), (True, 0.5), (False, 2.0), (True, 1.0))
some_rows = st.lists(st.tuples(st.booleans(), st.floats(min_value=0, max_value=4)), min_size=1, max_size=20).map(
    lambda images: _rows(*images)
)


def test_accuracies_are_counted_over_all_images() -> None:
    found = compute_statistics(FOUR, ["0", "1/4", "1/2", "0.99", "1"])
    assert found.images == 4
    assert found.correct == 3
    assert found.clean_accuracy == 0.75
    assert found.certified == {"0": 0.75, "1/4": 0.5, "1/2": 0.25, "0.99": 0.25, "1": 0.0}


def test_an_image_exactly_at_eps_is_not_certified() -> None:
    eps = 36 / 255
    assert certified_accuracy(_rows((True, eps)), eps) == 0
    assert certified_accuracy(_rows((True, math.nextafter(eps, 1))), eps) == 1


def test_radius_distribution_is_over_correct_images_only() -> None:
    found = radius_distribution(FOUR)
    radii = [0.25, 0.5, 1.0]
    mean, variance = textbook.fmean(radii), textbook.pvariance(radii)
    third = textbook.fmean((radius - mean) ** 3 for radius in radii)
    assert found.median == 0.5
    assert found.variance == pytest.approx(variance, rel=1e-12)
    assert found.skewness == pytest.approx(third / variance**1.5, rel=1e-12)


def test_a_long_right_tail_has_positive_skewness() -> None:
    assert radius_distribution(_rows(*[(True, 0.1)] * 9, (True, 1.0))).skewness > 1


def test_what_does_not_exist_is_not_a_number() -> None:
    assert all(math.isnan(value) for value in radius_distribution(_rows((False, 1.0))))
    assert math.isnan(radius_distribution(_rows(*[(True, 0.1)] * 7)).skewness)
    assert math.isnan(radius_distribution(_rows((True, 0.1), (True, math.inf))).variance)


def test_no_rows_are_refused() -> None:
    with pytest.raises(BronetError, match="at least one image, got none"):
        compute_statistics([], ["1/4"])
    with pytest.raises(BronetError, match="at least one image, got none"):
        certified_curve([])


def test_the_curve_falls_by_the_images_at_each_radius() -> None:
    curve = certified_curve([*FOUR, *_rows((True, 0.5))])
    assert curve.radius.tolist() == [0.0, 0.25, 0.5, 1.0]
    assert curve.accuracy.tolist() == [0.8, 0.6, 0.2, 0.0]


def test_an_infinite_radius_keeps_the_curve_up() -> None:
    curve = certified_curve(_rows((True, math.inf), (True, 0.5)))
    assert curve.radius.tolist() == [0.0, 0.5]
    assert curve.accuracy.tolist() == [1.0, 0.5]


@given(rows=some_rows, radius=st.floats(min_value=0, max_value=5))
def test_the_curve_is_certified_accuracy_at_every_radius(rows: list[Row], radius: float) -> None:
    curve = certified_curve(rows)
    for where in (radius, *(row.radius for row in rows)):
        step = np.searchsorted(curve.radius, where, side="right") - 1
        assert curve.accuracy[step] == certified_accuracy(rows, where)


def test_one_and_several_runs_are_drawn_as_png_and_pdf() -> None:
    one = draw_curve({"one": FOUR}, ["1/4", "1/2"])
    several = draw_curve({"one": FOUR, "two $x_1$": FOUR[:2]}, ["36/255", "72/255", "108/255"])
    for figure in (one, several):
        assert figure_bytes(figure, "png").startswith(PNG_SIGNATURE)
        assert figure_bytes(figure, "pdf").startswith(PDF_SIGNATURE)
    assert one.get_size_inches().tolist() == [7.2, 4.2]
    labels = {text.get_text() for text in one.axes[0].texts}
    assert {"ε = 1/4", "1/2", " 50.0 %", " 25.0 %"} <= labels
    legend = several.axes[0].get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["one", "two $x_1$"]


def test_the_same_rows_give_the_same_picture() -> None:
    first, again = (figure_bytes(draw_curve({"run": FOUR}, ["1/4"]), "pdf") for _ in range(2))
    assert first == again


def test_a_run_without_any_certificate_can_be_drawn() -> None:
    figure = draw_curve({"hopeless": _rows((False, 1.0), (True, 0.0))}, [])
    assert figure_bytes(figure, "png").startswith(PNG_SIGNATURE)

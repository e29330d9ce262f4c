"""The experiments behind the paper's figures: their maths against the code that trains, and small runs of each."""

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from bronet import BronetError, load_pretrained
from bronet.data import load_dataset
from bronet.losses import certificate_regularization, certificate_risk, cross_entropy, logit_annealing, logit_margin
from bronet.recipe import named_recipe
from lab.analyze import converted, cr_landscape, loss_curves, run_figures, theorem1
from lab.commands import app
from lab.tables.published import paper_rows, published_runs
from published_rows import publish_rows

DIGITS = "bronet-digits/digits"
LABEL = torch.tensor([0])
PROBABILITIES = (0.02, 0.3, 0.499, 0.501, 0.8, 0.97)
NO_LANDSCAPE = cr_landscape.LandscapeSetting(points=3)

pytestmark = pytest.mark.usefixtures("one_thread")
terminal = CliRunner()


def by_code(name: str, p: float) -> tuple[float, float]:
    """Return the value of a loss that trains, and its derivative by the probability, from autograd."""
    own = name == "LA"
    temperature, offset = (loss_curves.TEMPERATURE, loss_curves.OFFSET) if own else (1.0, 0.0)
    margin = torch.tensor(temperature * loss_curves.margin(p) + offset, dtype=torch.float64, requires_grad=True)
    logits = torch.stack([margin, torch.zeros((), dtype=torch.float64)])[None]
    losses = {
        "CE": cross_entropy,
        "CE + CR": lambda z, y: certificate_regularization(z, y, gamma=loss_curves.GAMMA),
        "LA": lambda z, y: logit_annealing(z, y, temperature=0.75, offset=2.0, beta=5.0),
        "LA, plain softmax": lambda z, y: logit_annealing(z, y, temperature=0.75, offset=2.0, beta=5.0),
    }
    value = losses[name](logits, LABEL)
    value.backward()
    assert margin.grad is not None
    return value.item(), float(margin.grad) / (p * (1 - p) / temperature)


@pytest.mark.parametrize("name", loss_curves.CURVES)
@pytest.mark.parametrize("p", PROBABILITIES)
def test_curves_are_the_losses_that_train_and_their_derivatives(name: str, p: float) -> None:
    value, derivative = by_code(name, p)
    assert loss_curves.CURVES[name].value(p) == pytest.approx(value, rel=1e-9)
    assert loss_curves.CURVES[name].derivative(p) == pytest.approx(derivative, rel=1e-9)


def test_the_derivative_of_cr_jumps_at_one_half_and_explodes_at_one_while_la_anneals() -> None:
    cr, la = loss_curves.CURVES["CE + CR"].derivative, loss_curves.CURVES["LA"].derivative
    assert cr(0.5 + 1e-9) - cr(0.5 - 1e-9) == pytest.approx(-4 * loss_curves.GAMMA, abs=1e-6)
    assert cr(1 - 1e-6) < -1e5
    assert abs(la(1 - 1e-3)) < 1e-12


@pytest.fixture(scope="module")
def digits() -> tuple[object, object]:
    return load_pretrained(DIGITS), load_dataset("digits", "test")


def test_the_landscape_is_the_term_at_moved_weights(digits: tuple) -> None:  # type: ignore[type-arg]
    model, images = digits
    before = [parameter.detach().clone() for parameter in model.parameters()]
    setting = cr_landscape.LandscapeSetting(points=3, extent=0.01, seed=1)
    rows = cr_landscape.measure(model, images, setting)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), before, strict=True))
    assert [row[:2] for row in rows] == list(itertools.product((-0.01, 0.0, 0.01), repeat=2))

    index = cr_landscape.choose(model, images, 1)
    x, labels = images.pixels(index), images.labels[index]
    there = certificate_risk(model(x), labels, gamma=0.5).item()
    assert rows[4].cr == pytest.approx(there, abs=1e-5)  # of logits near ten, in float32
    for row in rows:
        assert row.cr == pytest.approx(-0.5 * max(row.margin, 0.0), abs=1e-7)

    moved = load_pretrained(DIGITS)
    first, second = cr_landscape.directions(moved, x, labels, setting)
    with torch.no_grad():
        for parameter, d1, d2 in zip(moved.parameters(), first, second, strict=True):
            parameter.add_(-0.01 * d1 + 0.01 * d2)
        assert float(logit_margin(moved(x), labels)) == pytest.approx(rows[2].margin, rel=1e-4)


def test_directions_are_signs_of_the_gradient_and_of_coins(digits: tuple) -> None:  # type: ignore[type-arg]
    model, images = digits
    index = cr_landscape.choose(model, images, 2)
    x, labels = images.pixels(index), images.labels[index]
    first, second = cr_landscape.directions(model, x, labels, NO_LANDSCAPE)
    term = certificate_risk(model(x), labels, gamma=0.5)
    (gradient,) = torch.autograd.grad(term, [model.head.weight])
    names = [name for name, _ in model.named_parameters()]
    assert torch.equal(first[names.index("head.weight")], gradient.sign())
    coins = torch.cat([d.flatten() for d in second])
    assert set(coins.tolist()) == {-1.0, 1.0}
    assert abs(float(coins.mean())) < 5 / math.sqrt(len(coins))


def test_the_image_is_the_correct_one_with_the_smallest_margin(digits: tuple) -> None:  # type: ignore[type-arg]
    model, images = digits
    with torch.no_grad():
        margins = logit_margin(model(images.pixels(torch.arange(len(images)))), images.labels)
    chosen = cr_landscape.choose(model, images, 3)
    assert torch.allclose(margins[chosen], margins[margins > 0].sort().values[:3])


def test_the_teaser_has_a_circle_for_every_row_and_every_full_run(tmp_path: Path) -> None:
    publish_rows(tmp_path / "ours", named_recipe("cifar10/lipconvnet-10-32"), (0.77, 0.63, 0.47, 0.33))
    publish_rows(tmp_path / "part", named_recipe("cifar10/bronet-m"), (0.9, 0.8, 0.7, 0.6), images=100)
    rows = run_figures.measure(published_runs(tmp_path))
    printed = [row for row in paper_rows(1) if row.group == "cifar10"]
    assert len(rows) == len(printed) + 1
    ours = rows[-1]
    assert (ours.source, ours.name) == (run_figures.OURS, "lipconvnet-10-32")
    assert (ours.clean, ours.certified_36) == pytest.approx((77.0, 63.0))
    assert ours.millions == pytest.approx(8.77, abs=0.01)


def test_the_rademacher_bound_is_above_the_complexity_of_linear_margins() -> None:
    """All signs of four points on a line, all slopes up to L and all values at 0: the supremum, averaged."""
    x, lipschitz, tau = np.array([-1.0, -0.4, 0.3, 1.1]), 0.3, 1.0
    slopes, starts = np.linspace(-lipschitz, lipschitz, 41), np.linspace(-1.0, 2.0, 61)
    margins = starts[:, None, None] + slopes[None, :, None] * x
    losses = np.clip(1 - margins / tau, 0, 1)
    suprema = [(losses @ np.array(signs)).max() / len(x) for signs in itertools.product((-1, 1), repeat=len(x))]
    bound = theorem1.rademacher_bound(torch.tensor(np.abs(x)), lipschitz=lipschitz, tau=tau, classes=1)
    assert np.mean(suprema) <= bound
    assert bound < 0.5  # and the bound is not the trivial one


def test_the_bound_on_the_complexity_is_never_above_one_half() -> None:
    distances = torch.ones(100)
    assert theorem1.rademacher_bound(distances, lipschitz=1e9, tau=1.0, classes=10) == 0.5
    assert theorem1.rademacher_bound(distances, lipschitz=0.01, tau=1.0, classes=4) == pytest.approx(0.01 + 0.1)


def test_the_measured_risk_is_above_its_lower_bound() -> None:
    setting = theorem1.TheoremSetting(lipschitz=(4.0, 0.01), noise=(0.5,), steps=12)
    large, small = theorem1.measure(setting)
    for row in (large, small):
        assert row.bound == row.error - 2 * row.rademacher - row.confidence
        assert row.risk > row.bound
    assert small.risk > large.risk
    assert small.bound > large.bound
    assert small.bound > 0  # the theorem says something there


def test_margins_of_the_trained_network_have_the_stated_constant() -> None:
    train = load_dataset("digits", "train")
    setting = theorem1.TheoremSetting(lipschitz=(0.5,), steps=3)
    model, scale = theorem1._trained(train, 0.5, setting)
    a, b = train.pixels(torch.arange(0, 200)), train.pixels(torch.arange(200, 400))
    labels = train.labels[:200]
    with torch.no_grad():
        change = (logit_margin(scale * model(a), labels) - logit_margin(scale * model(b), labels)).abs()
    assert (change <= 0.5 * (a - b).flatten(1).norm(dim=1)).all()


@pytest.mark.parametrize(
    "words",
    [
        ["losses"],
        ["teaser", "--results", "results"],
        ["cr-landscape", "--points", "3"],
        ["theorem1", "--steps", "1", "--noise", "0.5", "--lipschitz", "0.5"],
    ],
    ids=lambda words: words[0],
)
def test_a_command_writes_rows_and_both_pictures(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    publish_rows(tmp_path / "results" / "ours", named_recipe("cifar10/lipconvnet-10-32"), (0.77, 0.63, 0.47, 0.33))
    result = terminal.invoke(app, ["analyze", *words])
    assert result.exit_code == 0, result.output
    assert {path.name for path in Path("analysis").iterdir()} == {
        f"{words[0]}.{kind}" for kind in ("csv", "png", "pdf")
    }
    assert Path(f"analysis/{words[0]}.png").read_bytes().startswith(b"\x89PNG")
    assert Path(f"analysis/{words[0]}.pdf").read_bytes().startswith(b"%PDF")


@pytest.mark.slow
def test_one_command_draws_them_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results").mkdir()
    assert terminal.invoke(app, ["analyze", "all"]).exit_code == 0
    names = {path.stem for path in Path("analysis").iterdir()}
    assert names == {"losses", "teaser", "cr-landscape", "theorem1", "lot-condition"}


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: cr_landscape.LandscapeSetting(points=4), "points must be odd"),
        (lambda: cr_landscape.LandscapeSetting(extent=0), "extent must be positive"),
        (lambda: cr_landscape.LandscapeSetting(extent=float("inf")), "extent must be positive and finite, got inf"),
        (lambda: cr_landscape.LandscapeSetting(seed=2**64), "seed must satisfy"),
        (lambda: theorem1.TheoremSetting(tau=0), "tau must be positive"),
        (lambda: theorem1.TheoremSetting(tau=float("inf")), "tau must be positive and finite"),
        (lambda: theorem1.TheoremSetting(lipschitz=(float("nan"),)), "lipschitz must be positive and finite"),
        (lambda: theorem1.TheoremSetting(seed=-1), "seed must satisfy"),
        (lambda: theorem1.TheoremSetting(noise=(2.0,)), "noise must lie in"),
        (lambda: theorem1.TheoremSetting(lipschitz=(-1.0,)), "lipschitz must be positive"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused(make: object, words: str) -> None:
    with pytest.raises(BronetError, match=words):
        make()  # type: ignore[operator]


@pytest.mark.slow
def test_a_converted_network_is_measured_beside_a_bronet_of_its_size(tmp_path: Path) -> None:
    done = terminal.invoke(app, ["analyze", "converted", "--seeds", "1", "--epochs", "2", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    rows = converted.read_rows(tmp_path / "converted.csv")
    assert [(row.network, row.seed, row.epochs) for row in rows] == [("converted ResNet", 0, 2), ("BRONet", 0, 2)]
    assert abs(rows[0].parameters / rows[1].parameters - 1) < 0.05
    for row in rows:
        assert 0.2 < row.clean <= 1
        assert 0 < row.half <= row.quarter <= row.clean
    assert converted.table(rows) in done.output


def test_the_page_shows_the_measured_rows_of_converted_networks() -> None:
    root = Path(__file__).parents[2]
    rows = converted.read_rows(root / "lab/results/analysis/converted.csv")
    assert converted.table(rows) in (root / "docs/convert.md").read_text(encoding="utf-8")

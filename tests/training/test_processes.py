"""Many processes are one: a run in two ends with the weights of a run in one, up to rounding."""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from bronet.layers.shift import Centring
from torchrun import alone, largest_difference, together

# Ten and twenty steps in float32. NAdam divides by the root of squared gradients, which magnifies rounding a little.
ROUNDING = 2e-4


def log_of(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    "values",
    [
        ("train.epochs=4", "train.ema_decay=0.5", "train.validate_every=2"),
        # Few steps: gradients jump where MaxMin or EMMA changes sides, and then rounding is magnified.
        pytest.param(
            ("train.epochs=2", "model.backbone=lipreg", "optim.name=sgd", "optim.lr=0.05", "loss.name=ce"),
            marks=pytest.mark.slow,
        ),
        ("train.epochs=2", "optim.name=muon", "optim.schedule=linear"),
    ],
    ids=["bronet", "liresnet", "muon"],
)
def test_two_processes_train_the_network_of_one(tmp_path: Path, values: tuple[str, ...]) -> None:
    alone(tmp_path / "one", *values)
    printed = together(tmp_path / "two", *values)
    assert printed.count("epoch 2/") == printed.count("trained: ") == 1  # one process speaks
    assert largest_difference(tmp_path / "one", tmp_path / "two") < ROUNDING
    for one, two in zip(log_of(tmp_path / "one"), log_of(tmp_path / "two"), strict=True):
        assert one.keys() == two.keys()
        assert one["accuracy"] == two["accuracy"]
        assert one.get("validation_accuracy") == two.get("validation_accuracy")
        torch.testing.assert_close(one["loss"], two["loss"], rtol=ROUNDING, atol=0)
    assert json.loads((tmp_path / "two" / "record.json").read_text())["processes"] == 2


def test_centring_over_all_processes_is_that_of_the_whole_batch() -> None:
    """Two shares in one process: the mean of both is exchanged, forward and backward."""
    torch.manual_seed(0)
    x = torch.randn(6, 3, 2, 2, dtype=torch.float64)
    weight = torch.randn_like(x)
    whole = Centring(3, dtype=torch.float64)
    full = x.clone().requires_grad_()
    (whole(full) ** 3 * weight).sum().backward()

    shares = [part.clone().requires_grad_() for part in x.chunk(2)]
    means = [share.mean((0, 2, 3)) for share in shares]
    layers = [Centring(3, dtype=torch.float64) for _ in shares]

    def exchange(mean: Tensor) -> Tensor:
        return (means[0] + means[1]) / 2

    for layer in layers:
        layer.mean_over_all = exchange
    losses = [
        (layer(share) ** 3 * part).sum() for layer, share, part in zip(layers, shares, weight.chunk(2), strict=True)
    ]
    (losses[0] + losses[1]).backward()
    torch.testing.assert_close(torch.cat([share.grad for share in shares]), full.grad)
    torch.testing.assert_close(layers[0].mean, whole.mean)

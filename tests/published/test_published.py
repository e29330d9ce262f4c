"""Layers and networks against stored outputs of the published code: the same numbers in, the same numbers out."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

from bronet.ortho import orthogonal_maps, reflector
from bronet.ortho.spd import SEMI_ORTHOGONAL_RIDGE, ridge_slope
from published_cases import CASES, built, direction, fixed, images, numbers

STORED = dict(np.load(Path(__file__).with_name("outputs.npz")))


def stored(name: str) -> torch.Tensor:
    return torch.from_numpy(np.asarray(STORED[name]))


@pytest.mark.parametrize("name", CASES)
def test_outputs_in_evaluation_are_those_of_the_published_code(name: str) -> None:
    tolerance = CASES[name].tolerance
    ours = built(name).eval()(images(name)).squeeze()
    same = f"{name}/evaluation" not in STORED  # as in training
    assert_close(ours, stored(f"{name}/{'training' if same else 'evaluation'}"), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", [name for name in CASES if CASES[name].gradients])
def test_training_gives_the_published_outputs_gradients_and_running_means(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The published gradients of Cholesky layers and of BRO necks leave out that the ridge follows V; so do ours here.
    def of_all_but_necks(ridge: float, n: int, dtype: torch.dtype) -> float:
        return 0.0 if ridge == SEMI_ORTHOGONAL_RIDGE else ridge_slope(ridge, n, dtype)

    monkeypatch.setattr(orthogonal_maps, "ridge_slope", lambda *_arguments: 0.0)
    if name == "bronet-tiny":
        monkeypatch.setattr(reflector, "ridge_slope", of_all_but_necks)
    module, x, tolerance = built(name).train(), images(name).requires_grad_(), CASES[name].tolerance
    ours = module(x).squeeze()
    assert_close(ours, stored(f"{name}/training"), rtol=tolerance, atol=tolerance)
    (ours * numbers(f"{name}/cotangent", tuple(ours.shape))).sum().backward()
    assert x.grad is not None
    products = {"input": direction(name, "input", x.grad)}
    for key, tensor in (*module.named_parameters(), *module.named_buffers()):
        if not fixed(key):
            value = tensor.grad if isinstance(tensor, nn.Parameter) else tensor
            assert value is not None
            products[key] = direction(name, key, value)
    for key, published in zip(sorted(products), stored(f"{name}/products"), strict=True):
        allowed = tolerance * float(published.abs().clamp_min(1.0))
        assert float((products[key] - published).abs()) <= allowed, key

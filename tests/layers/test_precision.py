"""The norm of the map that runs, in the precision in which it runs, for parameters that make factorisations fail.

Float32 moves a Gram matrix by a few ulps of its norm: of a rank-deficient V it is indefinite then. The ridge is never
below that, so the norm stays below `NORM[dtype]`, far above what well-conditioned parameters have.
"""

import math
from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn

from bronet import BROLinear, CholeskyLinear, frozen
from bronet.layers import CONVOLUTIONS, LipschitzLayer, orthogonal_bro
from bronet.ortho.reflector import dense_inverse
from bronet.ortho.spd import unit_scaled
from jacobian import jacobian

pytestmark = pytest.mark.usefixtures("one_thread")

NORM = {torch.float32: 1.05, torch.float64: 1 + 1e-6}
INVERTING = ("bro", "lot", "cayley", "cholesky", "bcop", "eco")
PARAMETERS = (
    *("rank 1", "rank 2", "rank 3", "rank 4", "repeated", "times 0", "times 1e-30", "times 1e30"),
    *("condition 1e2", "condition 1e3", "condition 1e4", "condition 1e8"),
)


def hostile(name: str, shape: torch.Size) -> Tensor:
    """Return a kernel of these parameters; a number is the condition of its middle tap."""
    generator = torch.Generator().manual_seed(len(name))
    drawn = torch.randn(shape, generator=generator, dtype=torch.float64).flatten(1).view(*shape[:2], -1)
    m, n, _ = drawn.shape
    match name.split():
        case ["rank", number]:
            rank = min(int(number), n)
            mixed = torch.randn(rank, n, generator=generator, dtype=torch.float64)
            drawn = torch.einsum("mrt,rn->mnt", drawn[:, :rank], mixed)
        case ["repeated"]:
            drawn[:, n // 2 :] = drawn[:, : n - n // 2].clone()
        case ["times", scale]:
            drawn *= float(scale)
        case ["condition", number]:
            U, _, W = torch.linalg.svd(drawn[..., 0], full_matrices=False)
            values = torch.logspace(0, -math.log10(float(number)), min(m, n), dtype=torch.float64)
            drawn *= 0.1 / float(number)
            drawn[..., drawn.shape[-1] // 2] += (U * values) @ W
    return drawn.view(shape)


def poison(layer: nn.Module, name: str) -> None:
    with torch.no_grad():
        for parameter in layer.parameters():
            if parameter.ndim > 1:
                parameter.copy_(hostile(name, parameter.shape).to(parameter.dtype))


def norm_as_it_runs(layer: Callable[[Tensor], Tensor], shape: tuple[int, ...], dtype: torch.dtype) -> float:
    """Return the norm of the computed linear map, in float64."""
    return float(torch.linalg.matrix_norm(jacobian(lambda x: layer(x.to(dtype)).double(), shape), 2))


@pytest.mark.parametrize("kept", [False, True], ids=["in each pass", "kept"])
@pytest.mark.parametrize("dtype", NORM)
@pytest.mark.parametrize("kind", INVERTING)
@pytest.mark.parametrize(("c_in", "size"), [(12, (2, 3)), (5, (2, 15))])
def test_no_parameters_make_a_convolution_stretch(
    kind: str, c_in: int, size: tuple[int, int], dtype: torch.dtype, kept: bool
) -> None:
    layer = CONVOLUTIONS[kind](c_in, 12, input_size=size, dtype=dtype).eval()
    for name in PARAMETERS:
        poison(layer, name)
        with frozen(layer) if kept else nullcontext():
            assert norm_as_it_runs(layer, (c_in, *size), dtype) <= NORM[dtype], name


@pytest.mark.parametrize("dtype", NORM)
@pytest.mark.parametrize(("d_in", "d_out", "rank"), [(64, 64, 16), (160, 160, 64), (96, 40, 90)])
def test_no_parameters_make_a_dense_layer_stretch(d_in: int, d_out: int, rank: int, dtype: torch.dtype) -> None:
    parametrized = nn.Linear(d_in, d_out, bias=False, dtype=dtype)
    layers = (
        BROLinear(d_in, d_out, rank=rank, dtype=dtype),
        CholeskyLinear(d_in, d_out, dtype=dtype),
        CholeskyLinear(d_in, d_out, ridge=1e-9, dtype=dtype),
        orthogonal_bro(parametrized, rank=rank),
    )
    for layer in layers:
        for name in PARAMETERS:
            poison(layer, name)
            assert norm_as_it_runs(layer, (d_in,), dtype) <= NORM[dtype], (type(layer).__name__, name)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [(BROLinear(64, 64, rank=16), (64,)), (CONVOLUTIONS["bro"](12, 12), (12, 2, 3)), (CholeskyLinear(64, 64), (64,))],
    ids=lambda value: type(value).__name__,
)
def test_well_conditioned_parameters_give_nearly_the_float64_program_in_float32(
    layer: LipschitzLayer, shape: tuple[int, ...]
) -> None:
    for name in ("condition 2", "condition 10"):
        poison(layer, name)
        apply = layer.proved(shape).apply
        assert (
            norm_as_it_runs(lambda x, apply=apply: layer(x).double() - apply(x.double()), shape, torch.float32) < 1e-4
        )


def test_no_parameters_make_a_sandwich_stretch() -> None:
    layer = CONVOLUTIONS["sandwich"](6, 6, input_size=(3, 3))
    x = torch.randn(1, 6, 3, 3, generator=torch.Generator().manual_seed(0))
    for name in PARAMETERS:
        poison(layer, name)
        slope = torch.autograd.functional.jacobian(layer, x).double().reshape(54, 54)
        assert float(torch.linalg.matrix_norm(slope, 2)) <= NORM[torch.float32], name


@pytest.mark.parametrize("dtype", NORM)
def test_lot_stays_a_contraction_after_any_number_of_steps(dtype: torch.dtype) -> None:
    """Where rounding makes an eigenvalue of V V* negative, steps without a shift multiply it until it overflows."""
    layer = CONVOLUTIONS["lot"](12, 12, input_size=(2, 3), dtype=dtype)
    for name in ("rank 1", "rank 2", "repeated"):
        poison(layer, name)
        for layer.steps in (10, 25, 60, 200):  # type: ignore[assignment]
            assert norm_as_it_runs(layer, (12, 2, 3), dtype) <= NORM[dtype], (name, layer.steps)
            assert layer.proved((12, 2, 3)).lipschitz < NORM[torch.float64]


@pytest.mark.parametrize("n", [4, 31, 200])
@pytest.mark.parametrize("name", PARAMETERS)
def test_the_inverse_that_training_uses_makes_no_reflector_stretch(n: int, name: str) -> None:
    V = unit_scaled(hostile(name, torch.Size((2 * n, n))).float())
    P = dense_inverse(V, ridge=1e-7).double()
    values = torch.linalg.eigvalsh(V.double() @ (P + P.mT) / 2 @ V.double().mT)
    assert values.min() > -0.02
    assert values.max() < (NORM[torch.float32] + 1) / 2


def test_parameters_that_are_no_numbers_give_no_numbers() -> None:
    """Like every layer of torch, and unlike a factorisation that raises its own error; training stops with one line."""
    layers: tuple[tuple[LipschitzLayer, tuple[int, ...]], ...] = (
        (BROLinear(8, 8), (1, 8)),
        (CONVOLUTIONS["bro"](8, 8), (1, 8, 4, 4)),
    )
    for layer, shape in layers:
        with torch.no_grad():
            next(layer.parameters()).view(-1)[3] = torch.nan
        assert not layer(torch.ones(shape)).isfinite().any()

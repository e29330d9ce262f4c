"""Every rival layer: singular values and Jacobians against its proved bound, hostile or trained, in every shape."""

import re

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from bronet import BronetError, frozen
from bronet.layers import CONVOLUTIONS, LipschitzLayer
from bronet.layers.rivals.fourier import LOTConv2d
from bronet.layers.rivals.potential import CPLConv2d, Key, SLLConv2d
from bronet.layers.rivals.spatial import NEGLIGIBLE, BCOPConv2d, SOCConv2d, StandardConv2d, rest_of_series, skew_norm
from bronet.ortho.orthogonal_maps import cayley
from bronet.ortho.rescaling import absolute_sums
from jacobian import singular_values

RIVALS = [kind for kind in CONVOLUTIONS if kind not in ("bro", "lipreg")]
ORTHOGONAL = ["soc", "lot", "cayley", "bcop", "eco"]
"""With circular edges, equal channels and weights that their iterations can handle, every singular value is one."""
KINDS = ["normal", "zero", "duplicate", "tiny", "huge", "kaiming"]
AT_MOST_ONE = [kind for kind in RIVALS if kind != "standard"]


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def build(kind: str, c_in: int, c_out: int, k: int = 3, *, stride: int = 1, circular: bool = False) -> LipschitzLayer:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layer = CONVOLUTIONS[kind](
            c_in,
            c_out,
            k,
            stride=stride,
            padding_mode="circular" if circular else None,
            input_size=(4, 4),
            dtype=torch.float64,
        )
        return layer.eval()


@torch.no_grad()
def poison(layer: LipschitzLayer, how: str) -> None:
    """Fill every parameter with one of the hostile kinds."""
    for seed, parameter in enumerate(layer.parameters()):
        parameter.copy_(draw(*parameter.shape, seed=seed))
        match how:
            case "zero":
                parameter.zero_()
            case "duplicate" if parameter.ndim > 1:
                parameter[:, -1] = parameter[:, 0]
            case "tiny":
                parameter.mul_(1e-60)
            case "huge" if parameter.ndim > 1:
                parameter.mul_(1e60)
            case "kaiming" if parameter.ndim > 1:
                nn.init.kaiming_normal_(parameter)


def train_a_little(layer: LipschitzLayer, c_in: int, size: tuple[int, int], steps: int = 4) -> None:
    """Move every parameter away from its start by noise and optimiser steps."""
    with torch.no_grad():
        for seed, parameter in enumerate(layer.parameters()):
            parameter.add_(0.2 * draw(*parameter.shape, seed=seed))
    x = draw(3, c_in, *size)
    target = draw(*layer(x).shape, seed=1)
    optimiser = torch.optim.SGD(layer.parameters(), lr=0.1)
    layer.train()
    for _ in range(steps):
        layer.update_estimate(2)
        optimiser.zero_grad()
        (layer(x) - target).square().mean().backward()
        optimiser.step()
    layer.eval()


def jacobian_norm(function: object, x: Tensor) -> Tensor:
    """Return the norm of the Jacobian at an image, whatever the layer's nonlinearity does there."""
    J = torch.func.jacrev(lambda z: function(z[None])[0])(x)  # type: ignore[operator]
    return torch.linalg.svdvals(J.reshape(-1, x.numel())).max()


def assert_bound_holds(layer: LipschitzLayer, c_in: int, size: tuple[int, int]) -> None:
    proved = layer.proved((c_in, *size))
    for seed in range(2):
        x, y = draw(1, c_in, *size, seed=seed), draw(1, c_in, *size, seed=seed + 10)
        assert jacobian_norm(proved.apply, x[0]) <= proved.lipschitz * (1 + 1e-12)
        moved = (proved.apply(x) - proved.apply(y)).norm()
        assert moved <= proved.lipschitz * (x - y).norm() * (1 + 1e-12)
    assert proved.output_shape == tuple(layer(x).shape[1:])
    assert layer.lipschitz_bound(size) == pytest.approx(proved.lipschitz, rel=1e-9)


@pytest.mark.parametrize("how", KINDS)
@pytest.mark.parametrize("kind", RIVALS)
def test_bound_holds_for_hostile_weights(kind: str, how: str) -> None:
    layer = build(kind, 4, 4)
    poison(layer, how)
    assert_bound_holds(layer, 4, (4, 3))
    if kind in AT_MOST_ONE:
        assert layer.lipschitz_bound((4, 3)) <= 1 + 1e-8


@pytest.mark.parametrize(("c_in", "c_out", "stride"), [(4, 4, 1), (5, 2, 1), (2, 5, 1), (2, 4, 2)])
@pytest.mark.parametrize("kind", RIVALS)
def test_bound_holds_after_training_in_every_shape(kind: str, c_in: int, c_out: int, stride: int) -> None:
    layer = build(kind, c_in, c_out, stride=stride)
    train_a_little(layer, c_in, (4, 6))
    assert_bound_holds(layer, c_in, (4, 6))


@pytest.mark.parametrize("k", [1, 3, 5])
@pytest.mark.parametrize("kind", ORTHOGONAL)
def test_circular_convolution_is_orthogonal_after_training(kind: str, k: int) -> None:
    layer = build(kind, 4, 4, k, circular=True)
    if isinstance(layer, LOTConv2d):
        layer.steps = 40  # ten do not suffice once the weights have left the identity
    size = (k, k) if k > 1 else (3, 2)  # ECO is orthogonal on multiples of its kernel
    train_a_little(layer, 4, size)
    values = singular_values(layer.proved((4, *size)).apply, (4, *size))
    assert_close(values, torch.ones_like(values), atol=1e-6, rtol=0)


@pytest.mark.parametrize("kind", RIVALS)
def test_forward_is_the_proved_map_and_its_rounding_is_within_the_promise(kind: str) -> None:
    layer = build(kind, 3, 4)
    poison(layer, "normal")
    layer.update_estimate(300)  # CPL: the proof divides by the larger of estimate and proved norm
    x = draw(5, 3, 5, 4)
    proved = layer.proved((3, 5, 4))
    with torch.no_grad():
        y, z = proved.apply(x), layer(x)
    allowed = 2 * (proved.gain * x.flatten(1).norm(dim=1) + proved.offset)
    # Both are float64 computations of one function, by different sums.
    assert ((y - z).flatten(1).norm(dim=1) <= allowed + 1e-7 * (kind == "cpl")).all()
    assert 0 < proved.gain < 1e-11


@pytest.mark.parametrize("kind", RIVALS)
def test_float32_and_frozen_weights_give_nearly_the_same_function(kind: str) -> None:
    layer = build(kind, 4, 4)
    x = draw(2, 4, 6, 3)
    with torch.no_grad():
        expected = layer(x)
        layer.float()
        with frozen(layer):
            first = layer(x.float())
            assert_close(layer(x.float()), first)
            assert_close(first.double(), expected, atol=1e-4, rtol=0)
            next(layer.parameters()).add_(0.3)
            assert not torch.equal(layer(x.float()), first)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-2), (torch.float64, 1e-4)])
@pytest.mark.parametrize("shape", [(4, 4), (5, 5), (9, 5), (5, 9)])
def test_cayley_is_orthogonal_even_for_huge_parameters(
    shape: tuple[int, int], dtype: torch.dtype, tolerance: float
) -> None:
    for scale in (1e-20, 1.0, 1e4, 1e20):
        W = cayley(scale * draw(20, *shape).to(dtype))
        assert (torch.linalg.svdvals(W) - 1).abs().max() < tolerance, scale


def test_soc_truncation_error_bounds_every_number_of_terms() -> None:
    layer = SOCConv2d(4, 4, dtype=torch.float64)
    norm = skew_norm(layer.derive(torch.float64).detach())
    for terms in (4, 6, 15):
        layer.training_terms = terms
        values = singular_values(layer.train(), (4, 5, 5))
        assert (values - 1).abs().max() <= rest_of_series(norm, terms)
    assert rest_of_series(norm, 6) < 1.78
    assert 1 < layer.lipschitz_bound((5, 5)) <= 1 + NEGLIGIBLE


@pytest.mark.parametrize(("kernel_size", "norm"), [(1, 1.0), (3, 3.0), (5, 5.0)])
def test_soc_scales_and_starts_its_kernel_as_the_published_layer(kernel_size: int, norm: float) -> None:
    layer = SOCConv2d(48, 48, kernel_size, dtype=torch.float64)
    assert_close(layer.weight.std().item(), 48**-0.5, rtol=0.05, atol=0)
    kernel = layer.derive(torch.float64).detach()
    assert 0.94 * norm < skew_norm(kernel) <= norm * (1 + 1e-12)  # the squarings overestimate by up to six percent
    assert rest_of_series(skew_norm(kernel), layer.evaluation_terms) < NEGLIGIBLE
    assert rest_of_series(norm, layer.evaluation_terms - 1) >= NEGLIGIBLE


def test_soc_kernel_is_skew_to_the_last_bit() -> None:
    K = SOCConv2d(3, 3, 5).derive(torch.float64)
    assert torch.equal(K, -K.transpose(0, 1).flip(-2, -1))


def test_lot_reports_that_newton_has_not_converged() -> None:
    layer = LOTConv2d(4, 4, dtype=torch.float64)
    assert layer.proved((4, 5, 5)).remark == ""  # the identity kernel of its initialisation
    poison(layer, "duplicate")
    remark = layer.proved((4, 5, 5)).remark
    assert "has not converged after 10 steps" in remark
    smallest = re.search(r"from (\S+) to", remark)
    assert smallest is not None
    assert float(smallest[1]) < 0.1
    assert layer.proved((4, 5, 5)).lipschitz < 1 + 1e-9  # a contraction all the same


def test_bjorck_residual_enters_the_bound_of_bcop() -> None:
    layer = BCOPConv2d(4, 4, padding_mode="circular", dtype=torch.float64)
    layer.steps = 1
    poison(layer, "normal")
    values = singular_values(layer, (4, 5, 5))
    assert values.max() < 0.999  # far from converged
    assert values.max() <= layer.lipschitz_bound((5, 5)) < 1


def test_cpl_proof_divides_by_a_proved_norm_where_the_estimate_is_too_small() -> None:
    layer = CPLConv2d(3, 3, input_size=(5, 5), dtype=torch.float64)
    with torch.no_grad():
        layer.weight.copy_(draw(3, 3, 3, 3))
        layer.power_vector.copy_(draw(*layer.power_vector.shape))  # no estimate at all
    U = layer.derive(Key(torch.float64)).detach()
    assert singular_values(lambda x: nn.functional.conv2d(x, U, padding=1), (3, 5, 5)).max() > 1
    assert layer.lipschitz_bound((5, 5)) <= 1 + 1e-9
    assert_bound_holds(layer, 3, (5, 5))


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("kind", CONVOLUTIONS)
def test_every_parameter_gets_a_gradient(kind: str, k: int) -> None:
    """One that never did would have no optimiser state, and processes would wait for its gradient."""
    layer = build(kind, 4, 6, k).train()
    layer(draw(2, 4, 4, 4)).pow(2).sum().backward()
    assert all(parameter.grad is not None and parameter.numel() for parameter in layer.parameters())


def test_sll_weights_q_change_the_layer_but_never_the_bound() -> None:
    layer = SLLConv2d(4, 4, hidden_channels=6, dtype=torch.float64)
    x = draw(1, 4, 5, 5)
    before = layer(x).detach()
    for scale in (1.0, 200.0):
        with torch.no_grad():
            layer.log_q.copy_(scale * draw(6))
        assert_bound_holds(layer, 4, (5, 5))
    assert not torch.allclose(layer(x), before)


def test_proved_map_keeps_its_own_weights() -> None:
    layer = StandardConv2d(2, 2, dtype=torch.float64)
    x = draw(1, 2, 4, 4)
    proved = layer.proved((2, 4, 4))
    before = proved.apply(x)
    with torch.no_grad():
        layer.weight.mul_(2)
    assert_close(proved.apply(x), before)


def test_weights_far_apart_in_size_stay_finite() -> None:
    """Products of small norms vanish in float32, and roots of them; a symmetric kernel has no skew part at all."""
    bcop = CONVOLUTIONS["bcop"](4, 4, 3)
    soc = CONVOLUTIONS["soc"](2, 2, 7)
    with torch.no_grad():
        bcop.halves[0].mul_(1e-25)  # type: ignore[index, union-attr]
        soc.weight.zero_()  # type: ignore[operator, union-attr]
    for layer, channels in ((bcop, 4), (soc, 2)):
        x = torch.rand(2, channels, 5, 5)
        assert bool(layer(x).isfinite().all())
        assert layer.proved((channels, 5, 5)).lipschitz <= 1 + 1e-7
    assert_close(soc.eval()(x), x)
    bcop(torch.rand(2, 4, 5, 5)).sum().backward()
    assert all(bool(p.grad.isfinite().all()) for p in bcop.parameters() if p.grad is not None)


@pytest.mark.parametrize(("kernel_size", "terms"), [(101, None), (3, 200)])
def test_long_series_of_soc_have_a_bound(kernel_size: int, terms: int | None) -> None:
    layer = SOCConv2d(1, 1, kernel_size)
    layer.evaluation_terms = terms or layer.evaluation_terms
    assert layer.lipschitz_bound((3, 3)) <= 1 + 1e-7
    with pytest.raises(BronetError, match="kernel_size of SOCConv2d must be at most 501, got 503"):
        SOCConv2d(1, 1, 503)


@pytest.mark.parametrize("kind", RIVALS)
def test_a_first_use_without_gradients_spoils_no_later_one(kind: str) -> None:
    """Bases are computed once and kept: also where the first to ask was in inference mode."""
    size = (6, 10)  # which no other test asks for
    layer = CONVOLUTIONS[kind](2, 2, 3, input_size=size)
    x = torch.rand(2, 2, *size)
    with torch.inference_mode():
        layer.eval()(x)
    layer.train()(x).sum().backward()


def test_sums_are_counted_by_the_kernel_that_was_derived() -> None:
    class Wide(StandardConv2d):
        def derive(self, key: torch.dtype) -> Tensor:
            return super().derive(key).repeat(1, 1, 7, 7)

    narrow, wide = StandardConv2d(1, 1, 1), Wide(1, 1, 1)
    assert wide.proved((1, 8, 8)).gain > 7**2 * narrow.proved((1, 8, 8)).gain / 2


@pytest.mark.parametrize("kind", RIVALS)
def test_images_of_other_channels_are_refused(kind: str) -> None:
    with pytest.raises(BronetError, match="expects 4 channels"):
        build(kind, 4, 4)(draw(1, 3, 4, 4))


def test_sums_of_the_rescaling_are_those_of_the_autocorrelation() -> None:
    generator = torch.Generator().manual_seed(0)
    for k in (1, 2, 3, 5):
        kernel = torch.randn(6, 4, k, k, dtype=torch.float64, generator=generator)
        q = torch.rand(4, dtype=torch.float64, generator=generator) + 0.5
        columns = kernel.transpose(0, 1)
        gram = torch.nn.functional.conv2d(columns, columns, padding=k - 1)
        torch.testing.assert_close(absolute_sums(kernel, q), (gram.abs().sum((2, 3)) @ q) / q)


@torch.no_grad()
def test_the_norm_that_cpl_keeps_is_always_that_of_its_kernel() -> None:
    layer = CPLConv2d(3, 3, input_size=(5, 5), dtype=torch.float64).eval()
    x = draw(2, 3, 5, 5)
    layer(x)
    layer.weight.data.copy_(draw(3, 3, 3, 3))  # which torch does not count as a change
    fresh = CPLConv2d(3, 3, input_size=(5, 5), dtype=torch.float64).eval()
    fresh.load_state_dict(layer.state_dict())
    for image in (x, x, x[..., :4]):
        assert_close(layer(image), fresh(image), rtol=1e-12, atol=1e-12)

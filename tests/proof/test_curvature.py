"""Radii from gradient and curvature: what is proved of a smooth head, and that nothing closer changes the class."""

from collections.abc import Callable
from dataclasses import fields, replace

import mpmath
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from bronet import Chain, prove
from bronet.graph.network import ProvedNetwork
from bronet.layers import BROConv2d, BROLinear, Flatten, LipschitzLayer, MaxMin, Normalization, SmoothHead
from bronet.layers.registry import CONVOLUTIONS
from bronet.proof.curvature import LARGEST_CURVATURE, BentMap, bent, slope
from bronet.proof.proved_map import FLOAT32, ProvedMap, executed_in

pytestmark = pytest.mark.usefixtures("one_thread")

SHAPE = (2, 4, 4)
SCALES = [1e-6, 1e-2, 1.0, 1e3, 1e6]


def head_of(features: int, classes: int, *, scale: float = 1.0, seed: int = 0) -> SmoothHead:
    torch.manual_seed(seed)
    head = SmoothHead(features, classes, dtype=torch.float64)
    with torch.no_grad():
        head.hidden_weight.mul_(scale)
        head.hidden_bias.normal_(std=scale)
        head.bias.normal_()
    return head


def network(kind: str, *, scale: float = 1.0, seed: int = 0) -> ProvedNetwork:
    torch.manual_seed(seed)
    conv = CONVOLUTIONS[kind](2, 4, 3, input_size=(4, 4), dtype=torch.float64)
    layers: list[LipschitzLayer] = [Normalization((0.5, 0.4), std=0.25), conv, MaxMin(), Flatten()]
    model = Chain(SHAPE, *layers, BROLinear(64, 12, dtype=torch.float64), head_of(12, 4, scale=scale, seed=seed))
    return prove(model.double().eval())


def head_in(proved: ProvedNetwork) -> BentMap:
    assert isinstance(proved.head, BentMap)
    return proved.head


def nearest(program: Callable[[Tensor], Tensor], x: Tensor, t: Tensor, radius: Tensor, steps: int = 60) -> Tensor:
    """Points of the balls to which ascent on another logit leads, for the other class that it helps most."""
    best, least = x.clone(), torch.full_like(radius, torch.inf)
    size = radius.view(-1, *(1 for _ in x.shape[1:]))
    for j in range(program(x[:1]).shape[1]):
        moved = x.clone()
        for step in range(steps):
            moved.requires_grad_()
            logits = program(moved)
            margin = logits.gather(1, t[:, None])[:, 0] - logits[:, j]
            (gradient,) = torch.autograd.grad(margin.sum(), moved)
            with torch.no_grad():
                found = (margin < least) & (t != j)
                best[found], least = moved.detach()[found], torch.where(found, margin.detach(), least)
                if step + 1 == steps:
                    break
                direction = gradient / gradient.flatten(1).norm(dim=1).clamp_min(1e-300).view(size.shape)
                moved = moved - 4 * size / steps * direction
                delta = moved - x
                length = delta.flatten(1).norm(dim=1).view(size.shape)
                moved = x + delta * (size * (1 - 1e-12) / length.clamp_min(1e-300)).clamp_max(1)
    return best


def without_bend(proved: ProvedNetwork) -> ProvedNetwork:
    last = proved.nodes[-1]
    straight = ProvedMap(**{field.name: getattr(last.proved, field.name) for field in fields(ProvedMap)})
    return replace(proved, nodes=(*proved.nodes[:-1], replace(last, proved=straight)))


def test_the_activation_has_the_slope_and_the_curvature_that_the_proof_takes() -> None:
    x = torch.linspace(-50, 50, 100_001, dtype=torch.float64, requires_grad=True)
    (first,) = torch.autograd.grad(bent(x).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    x, first = x.detach(), first.detach()
    torch.testing.assert_close(first, slope(x), rtol=0, atol=1e-9)
    assert float(first.min()) >= 0
    assert float(first.max()) <= 1
    assert float(second.min()) >= -1e-9
    assert float(second.max()) == pytest.approx(LARGEST_CURVATURE, rel=1e-12)


@pytest.mark.parametrize("scale", SCALES)
def test_no_curvature_lies_below_that_of_the_margin(scale: float) -> None:
    """The least eigenvalue of the exact Hessian of every pair, at many points, against K."""
    head = head_of(5, 4, scale=scale)
    proved = head.proved((5,))
    assert isinstance(proved, BentMap)
    W, b, V = (t.detach() for t in (head.hidden_weight, head.hidden_bias, head.weight))
    generator = torch.Generator().manual_seed(1)
    tightest = torch.zeros(4, 4, dtype=torch.float64)
    for _ in range(100):
        z = torch.randn(5, generator=generator, dtype=torch.float64) / scale
        curvature = 2 * ((W @ z + b).square() + 4) ** -1.5
        for t in range(4):
            for j in range(4):
                hessian = W.mT @ ((V[t] - V[j]) * curvature)[:, None].mul(W)
                least = -float(torch.linalg.eigvalsh(hessian)[0])
                assert least <= float(proved.curvature[t, j]) * (1 + 1e-12)
                tightest[t, j] = max(float(tightest[t, j]), least)
    off = ~torch.eye(4, dtype=torch.bool)
    if scale <= 1:  # at larger ones nearly all units are far from where they bend
        assert (tightest[off] > 0.02 * proved.curvature[off]).all()


@pytest.mark.parametrize("scale", SCALES)
def test_no_gradient_lies_below_the_exact_one(scale: float) -> None:
    """Judged with sixty digits: the bound holds, and is no more than rounding above."""
    head = head_of(4, 3, scale=scale)
    proved = head.proved((4,))
    assert isinstance(proved, BentMap)
    W, b, V = (t.detach().tolist() for t in (head.hidden_weight, head.hidden_bias, head.weight))
    z = torch.randn(6, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    prediction = torch.tensor([0, 1, 2, 0, 1, 2])
    bounds = proved.gradients(z, prediction)
    with mpmath.workdps(60):
        for i, t in enumerate(prediction.tolist()):
            a = [mpmath.fdot(row, z[i].tolist()) + mpmath.mpf(shift) for row, shift in zip(W, b, strict=True)]
            slopes = [(1 + x / mpmath.sqrt(x * x + 4)) / 2 for x in a]
            for j in range(3):
                u = [s * (mpmath.mpf(p) - mpmath.mpf(q)) for s, p, q in zip(slopes, V[t], V[j], strict=True)]
                exact = mpmath.sqrt(sum(mpmath.fdot(u, column) ** 2 for column in zip(*W, strict=True)))
                assert exact <= mpmath.mpf(float(bounds[i, j]))
                assert scale > 1 or float(bounds[i, j]) <= float(exact) * (1 + 1e-9) + 1e-12 * scale


@pytest.mark.parametrize("scale", SCALES)
def test_the_rounding_of_the_head_stays_within_its_promise(scale: float) -> None:
    head = head_of(6, 5, scale=scale)
    proved = head.proved((6,))
    x = torch.randn(40, 6, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    W, b, V, c = (t.detach().numpy().astype(np.longdouble) for t in (
        head.hidden_weight, head.hidden_bias, head.weight, head.bias
    ))  # fmt: skip
    a = x.numpy().astype(np.longdouble) @ W.T + b
    exact = ((a + np.sqrt(a * a + 4)) / 2 - 1) @ V.T + c
    error = np.sqrt(((proved.apply(x).numpy() - exact) ** 2).sum(1))
    assert (error <= proved.gain * np.linalg.norm(x.numpy(), axis=1) + proved.offset).all()
    assert (error > 0).any()


@pytest.mark.parametrize("kind", ["bro", "soc", "cayley"])
@pytest.mark.parametrize("scale", [0.1, 1.0, 30.0])
def test_nothing_within_a_radius_changes_the_class_and_search_finds_only_beyond(kind: str, scale: float) -> None:
    proved = network(kind, scale=scale)
    images = torch.rand(12, *SHAPE, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    certified = proved.certify(images)
    assert (certified.radius > 0).all()
    t, radius = certified.prediction, certified.radius
    inside = nearest(proved.logits, images, t, radius)
    assert torch.equal(proved.logits(inside).argmax(dim=1), t)
    outside = nearest(proved.logits, images, t, 8 * radius)
    changed = proved.logits(outside).argmax(dim=1) != t
    assert changed.any()
    assert ((outside - images).flatten(1).norm(dim=1)[changed] > radius[changed]).all()


def test_the_radius_is_the_larger_of_two_and_gains_over_constants_alone() -> None:
    proved = network("bro")
    images = torch.rand(30, *SHAPE, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    both, straight = proved.certify(images), without_bend(proved).certify(images)
    assert (both.targeted >= straight.targeted).all()
    assert (both.radius > straight.radius).double().mean() > 0.9
    # Of one logit that no other bends away from, the quadratic formula itself, by another way than the program's.
    head = head_in(proved)
    z = images
    for node in proved.nodes[:-1]:
        z = node.proved.apply(z)
    g = head.gradients(z, both.prediction) * proved.lipschitz
    K = head.curvature[both.prediction] * proved.lipschitz**2
    logits = proved.logits(images)
    margin = logits.gather(1, both.prediction[:, None]) - logits
    formula = ((g.square() + 2 * K * margin).sqrt() - g) / K
    formula = formula.maximum(straight.targeted).scatter(1, both.prediction[:, None], torch.inf)
    assert (both.targeted <= formula).all()
    torch.testing.assert_close(both.targeted, formula, rtol=1e-6, atol=0)


def test_a_curvature_that_is_too_small_is_found_out() -> None:
    """Without K the search finds other classes within what would be certified: the test above can fail."""
    proved = network("bro", scale=3.0)
    last = proved.nodes[-1]
    head = head_in(proved)
    wrong = replace(head, curvature=0 * head.curvature)
    false = replace(proved, nodes=(*proved.nodes[:-1], replace(last, proved=wrong)))
    images = torch.rand(200, *SHAPE, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    claimed = false.certify(images)
    z = images
    for node in proved.nodes[:-1]:
        z = node.proved.apply(z)
    # The trunk keeps few distances, so the search goes on behind it, where what is claimed is nearly reached.
    found = nearest(last.proved.apply, z, claimed.prediction, claimed.radius * proved.lipschitz)
    assert (last.proved.apply(found).argmax(dim=1) != claimed.prediction).any()
    true = proved.certify(images)
    found = nearest(last.proved.apply, z, true.prediction, true.radius * proved.lipschitz)
    assert torch.equal(last.proved.apply(found).argmax(dim=1), true.prediction)


def test_of_many_classes_one_bound_serves_for_all_pairs() -> None:
    head = head_of(6, 12)
    proved = head.proved((6,))
    assert isinstance(proved, BentMap)
    V, W = head.weight.detach(), head.hidden_weight.detach()
    norm = float(torch.linalg.matrix_norm(W, 2))
    simple = (V[None] - V[:, None]).clamp_min(0).amax(dim=-1) * norm**2 / 4
    assert (proved.curvature >= simple * (1 - 1e-12)).all()
    torch.testing.assert_close(proved.curvature, simple, rtol=1e-8, atol=0)


def test_hostile_weights_give_no_radius_or_a_true_one() -> None:
    images = torch.rand(4, *SHAPE, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    for scale in (1e-160, 1e-30, 1e30, 1e90):
        proved = network("bro", scale=scale)
        certified = proved.certify(images)
        assert (certified.radius >= 0).all()
        inside = images + (certified.radius.clamp_max(1) * 0.999 / 32**0.5)[:, None, None, None]
        kept = proved.logits(inside).argmax(dim=1) == certified.prediction
        assert (kept | (certified.radius == 0)).all()


@pytest.mark.parametrize("exponent", [100, 150, 152, 153])
def test_squares_that_overflow_in_the_ball_end_the_radius(exponent: int) -> None:
    """Huge W and tiny V have a small product, but what is squared between them is huge."""
    torch.manual_seed(0)
    head = SmoothHead(4, 3, dtype=torch.float64)
    with torch.no_grad():
        head.hidden_weight.mul_(10.0**exponent)
        head.weight.mul_(10.0**-exponent)
    proved = prove(Chain((1, 2, 2), Flatten(), head).eval())
    images = torch.rand(20, 1, 2, 2, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    certified = proved.certify(images)
    assert ((certified.radius > 0) == (exponent == 100)).all()
    for factor in (0.5, 0.999):
        beside = images * (1 + factor * certified.radius / images.flatten(1).norm(dim=1))[:, None, None, None]
        kept = proved.logits(beside).argmax(dim=1) == certified.prediction
        assert (kept | (certified.radius == 0)).all()


def test_float32_radii_hold_where_the_head_bends() -> None:
    torch.manual_seed(0)
    model = Chain(SHAPE, BROConv2d(2, 4), MaxMin(), Flatten(), BROLinear(64, 12), SmoothHead(12, 4)).eval()
    images = torch.rand(10, *SHAPE, generator=torch.Generator().manual_seed(8), dtype=torch.float64)
    with executed_in(FLOAT32):
        narrow = prove(model).certify(images)
    wide = prove(model).certify(images)
    assert (narrow.radius > 0).any()
    assert (narrow.radius <= wide.radius).all()


class Tiny(nn.Module):
    """Logits 2.5e-5 and a(w z) + a(-w z) for w = 1e118 and z = 1e-165 x, where 1e-165 squared vanishes."""

    def __init__(self) -> None:
        super().__init__()
        self.head = SmoothHead(1, 2, dtype=torch.float64)
        with torch.no_grad():
            self.head.hidden_weight.copy_(torch.tensor([[1e118], [-1e118], [0], [0]], dtype=torch.float64))
            self.head.weight.copy_(torch.tensor([[0.0, 0, 0, 0], [1, 1, 0, 0]]))
            self.head.bias.copy_(torch.tensor([2.5e-5, 0]))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(1e-165 * x)
        return logits


def test_curvature_counts_where_its_factors_underflow() -> None:
    proved = prove(Tiny().eval(), (1,))
    x = torch.zeros(1, 1, dtype=torch.float64)
    certified = proved.certify(x)
    assert certified.radius > 0
    for factor in (0.999, 1.001, 2.0, 1e3):
        kept = proved.logits(x + 1e45 * factor).argmax(dim=1) == certified.prediction
        assert kept == (factor < 1)
        assert kept or certified.radius < 1e45 * factor

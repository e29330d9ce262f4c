"""The assumptions of docs/soundness.md on a GPU: its products, its division, and certificates made there."""

from fractions import Fraction

import pytest
import torch
from torch import Tensor

from bronet import BronetError, create_model, l2_pgd, prove
from bronet.layers import Normalization
from bronet.proof.proved_map import gamma
from hostile import KINDS, LAYERS, ONLY_FLOAT64, hostile

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("length", [3, 64, 513, 2048])
def test_products_on_a_gpu_err_by_gamma_at_most(length: int) -> None:
    a, b = draw(64, length), draw(length, 64, seed=1)
    b = b - (a[:1].mT @ (a[:1] @ b)) / a[0].square().sum()
    c = (a.cuda() @ b.cuda()).cpu()
    for i, j in ((0, 0), (0, 63), (5, 7), (63, 32)):
        terms = [Fraction(p) * Fraction(q) for p, q in zip(a[i].tolist(), b[:, j].tolist(), strict=True)]
        allowed = Fraction(gamma(length)) * sum((abs(term) for term in terms), Fraction(0))
        assert abs(Fraction(float(c[i, j])) - sum(terms, Fraction(0))) <= allowed


def test_normalisation_on_a_gpu_keeps_its_promise() -> None:
    layer = Normalization((0.1, 0.2), std=0.2507, dtype=torch.float64)
    proved = layer.cuda().proved((2, 8, 8))
    x = torch.rand(1, 2, 8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y = proved.apply(x.cuda()).cpu()
    mean = [Fraction(value) for value in layer.mean.tolist()]
    square = Fraction(0)
    for channel in range(2):
        for before, after in zip(x[0, channel].flatten().tolist(), y[0, channel].flatten().tolist(), strict=True):
            square += (Fraction(after) - (Fraction(before) - mean[channel]) / Fraction(layer.std)) ** 2
    allowed = Fraction(proved.gain * float(x.norm()) + proved.offset)
    assert square <= allowed**2


@pytest.mark.parametrize("name", LAYERS)
def test_bounds_on_a_gpu_lie_above_the_explicit_jacobian(name: str) -> None:
    shape = LAYERS[name][1]
    inputs = torch.Size(shape).numel()
    basis = torch.eye(inputs, dtype=torch.float64, device="cuda").view(inputs, *shape)
    for kind in KINDS:
        layer = hostile(name, kind, 0).cuda()
        try:
            proved = layer.proved(shape)
        except BronetError:  # a factorisation of a GPU may overflow where the CPU's does not; to refuse is sound
            assert kind in ONLY_FLOAT64, kind
            continue
        with torch.no_grad():
            moved = (proved.apply(basis) - proved.apply(torch.zeros_like(basis[:1]))).flatten(1)
        # Columns of a linear map; for the others differences from zero, which a Lipschitz constant bounds one by one.
        # Scaled first: squares of 1e200 overflow.
        largest = moved.abs().amax().clamp_min(torch.finfo(torch.float64).tiny)
        assert float((moved / largest).norm(dim=1).max() * largest) * (1 - 1e-13) <= proved.lipschitz, kind


def test_certificates_of_a_gpu_are_those_of_the_cpu_and_survive_an_attack() -> None:
    model = create_model("bronet-small", dataset="cifar10").eval()
    images = torch.rand(32, 3, 32, 32, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    there, here = prove(model.cuda()), prove(model.cpu())
    certificate = there.certify(images.cuda())
    torch.testing.assert_close(certificate.radius.cpu(), here.certify(images).radius, rtol=1e-6, atol=1e-10)
    attack = l2_pgd(there.logits, images.cuda(), certificate.prediction, eps=certificate.radius, steps=20)
    assert not attack.success.any()

"""Each assumption of docs/soundness.md, tried out: arithmetic, stored numbers, what a certificate speaks of."""

import math
import subprocess
import sys
from fractions import Fraction

import mpmath
import pytest
import torch
from torch import Tensor, nn

from bronet import BronetError, certified_radius, check, prove
from bronet.graph.checking import ModelVerdict
from bronet.layers import (
    CONVOLUTIONS,
    Bias,
    Centring,
    Flatten,
    Householder,
    L2NormPool,
    LastLayerNormalized,
    LipschitzLayer,
    MaxMin,
    Normalization,
    PixelUnshuffle,
)
from bronet.models import CertifiableModel
from bronet.models import Chain as OwnChain
from bronet.ortho.real_dft import Window, kernel_basis, real_dft
from bronet.proof.proved_map import TRIGONOMETRIC_ULPS, UNIT_ROUNDOFF, gamma
from bronet.proof.spectral import largest_eigenvalue, power_of_two_scale

CPU = torch.device("cpu")


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class Chain(CertifiableModel):
    """A head behind any layers that keep four numbers."""

    def __init__(self, *layers: nn.Module, dtype: torch.dtype = torch.float64) -> None:
        super().__init__((1, 2, 2))
        torch.manual_seed(0)
        self.normalization: LipschitzLayer = Normalization((0.5,), dtype=dtype)
        self.body = nn.Sequential(Flatten(), *layers)
        self.head = LastLayerNormalized(4, 3, dtype=dtype)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.body(self.normalization(images)))


def flattened(shape: tuple[int, int, int], *layers: LipschitzLayer, features: int) -> CertifiableModel:
    """Return a network of any layers on images of this shape, a Flatten, and a head for so many features.

    A chain is checked when it is made, so the parts are put into one that fits.
    """
    torch.manual_seed(0)
    chain = OwnChain(shape, Flatten(), LastLayerNormalized(math.prod(shape), 3))
    chain.layers = nn.Sequential(*layers, Flatten())
    chain.head = LastLayerNormalized(features, 3)
    return chain


def _images(count: int = 5) -> Tensor:
    return torch.rand(count, 1, 2, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


# Assumption 1: float64 products obey the standard model.


@pytest.mark.parametrize("length", [1, 3, 64, 513])
@pytest.mark.parametrize("columns", [1, 2, 33])
def test_products_err_by_gamma_at_most_even_where_they_cancel(length: int, columns: int) -> None:
    a, b = draw(4, length), draw(length, columns, seed=1)
    b = b - (a[:1].mT @ (a[:1] @ b)) / a[0].square().sum()  # nearly orthogonal to the first row: the sum cancels
    c = a @ b
    for i in range(4):
        for j in range(0, columns, 8):
            terms = [Fraction(p) * Fraction(q) for p, q in zip(a[i].tolist(), b[:, j].tolist(), strict=True)]
            allowed = Fraction(gamma(length)) * sum((abs(term) for term in terms), Fraction(0))
            assert abs(Fraction(float(c[i, j])) - sum(terms, Fraction(0))) <= allowed


def test_norms_are_right_to_a_few_ulps() -> None:
    x = draw(300)
    exact = sum((Fraction(value) ** 2 for value in x.tolist()), Fraction(0))
    computed = Fraction(float(torch.linalg.vector_norm(x)))
    slack = 1 + Fraction(gamma(302))
    assert (computed / slack) ** 2 <= exact <= (computed * slack) ** 2


# Assumption 2: stored cosines and sines are right to 32 units of roundoff.


@pytest.mark.parametrize("grid", [(10, 10), (18, 7), (34, 34)])
def test_the_stored_basis_is_right_to_the_stated_units(grid: tuple[int, int]) -> None:
    taps = (3, 3)
    basis = kernel_basis(grid, taps, dense=False, dtype=torch.float64, device=CPU)
    half = basis.shape[0] // 2
    worst = 0.0
    with mpmath.workdps(40):
        for row in range(0, half, 7):
            v, u = divmod(row, grid[1])
            for tap in range(taps[0] * taps[1]):
                y, x = divmod(tap, taps[1])
                angle = 2 * mpmath.pi * (mpmath.mpf(v * y) / grid[0] + mpmath.mpf(u * x) / grid[1])
                cos, minus_sin = float(basis[row, tap]), float(basis[half + row, tap])
                worst = max(worst, float(abs(cos - mpmath.cos(angle))), float(abs(minus_sin + mpmath.sin(angle))))
    assert worst <= TRIGONOMETRIC_ULPS * UNIT_ROUNDOFF


@pytest.mark.parametrize("dense", [True, False])
@pytest.mark.parametrize(("size", "corner"), [((4, 6), (1, 1)), ((6, 8), (0, 0)), ((3, 5), (2, 3))])
def test_a_cropped_basis_is_the_basis_of_its_window(
    dense: bool, size: tuple[int, int], corner: tuple[int, int]
) -> None:
    grid = (6, 8)
    window = Window(grid, size, corner)
    whole = real_dft(Window(grid, grid), dense=dense, dtype=torch.float64, device=CPU)
    direct = real_dft(window, dense=dense, dtype=torch.float64, device=CPU)
    for cut, own in zip(whole.cropped(window).factors(), direct.factors(), strict=True):
        torch.testing.assert_close(cut, own, rtol=0, atol=1e-15)


# Assumption 3: the numbers of a proof are its own, and the chain is the network.


def test_changes_to_a_float64_model_do_not_reach_its_proof() -> None:
    model = Chain(Bias(4, dtype=torch.float64), MaxMin())
    network = prove(model)
    before = network.logits(_images())
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.fill_(7.0)
    assert torch.equal(network.logits(_images()), before)


def test_changes_to_the_settings_of_a_model_do_not_reach_its_proof() -> None:
    """Every number, switch and size of every layer, its parts included, is made another after the proof."""
    for kind in CONVOLUTIONS:
        layer = CONVOLUTIONS[kind](2, 2, 3, stride=1, input_size=(4, 4), dtype=torch.float64)
        model = flattened(
            (2, 4, 4), Normalization((0.5, 0.4), std=0.5), layer, PixelUnshuffle(2), L2NormPool(2), features=8
        )
        network = prove(model)
        images = torch.rand(3, 2, 4, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
        before, logits = network.certify(images), network.logits(images)
        for module in model.modules():
            for name, value in list(vars(module).items()):
                if isinstance(value, bool | int | float) and not name.startswith("_"):
                    setattr(module, name, not value if isinstance(value, bool) else value + 1)
        after = network.certify(images)
        assert torch.equal(after.radius, before.radius), kind
        assert torch.equal(network.logits(images), logits), kind


def test_a_forward_that_is_not_the_layers_own_is_refused() -> None:
    """A proof reads layers, so a hook or another forward would go unseen (assumption A5)."""

    class Louder(Bias):
        def forward(self, x: Tensor) -> Tensor:
            return 100 * super().forward(x)

    def hooked(path: str) -> Chain:
        model = Chain(Bias(4, dtype=torch.float64), MaxMin())
        model.get_submodule(path).register_forward_hook(lambda module, inputs, output: 100 * output)
        return model

    replaced = Chain(MaxMin())
    replaced.head.forward = lambda x: 100 * x  # type: ignore[method-assign]
    cases = {
        "forward of body must be": hooked("body"),
        "forward of body.1 must be": hooked("body.1"),
        "forward of head must be": replaced,
        "forward of Chain must be": hooked(""),
        "Louder must define `proved`": Chain(Louder(4)),
    }
    for words, model in cases.items():
        with pytest.raises(BronetError, match=words):
            prove(model)
        checked = check(model)
        assert checked.verdict != ModelVerdict.CERTIFIABLE
        assert not checked.certifiable


def test_what_a_forward_refuses_has_no_proof() -> None:
    """Wrong channels, a missing Flatten or a wrong size: the proof is refused as the forward is."""
    cases = [
        (flattened((3, 4, 4), Normalization((0.5,)), features=48), "Normalization expects 1 channels"),
        (flattened((1, 4, 4), Normalization((0.5,)), features=9), "the head expects 9 features"),
        (flattened((2, 4, 4), Bias(1), features=32), r"Bias expects 1 channels, got activations of shape \(2, 4, 4\)"),
        (flattened((2, 4, 4), Centring(1), features=32), "Centring expects 1 channels"),
        (flattened((2, 4, 4), Householder(4), features=32), "Householder expects 4 channels"),
        *(
            (
                flattened((3, 4, 4), CONVOLUTIONS[kind](2, 4, 3, input_size=(4, 4)), features=64),
                "expects images of 2 channels",
            )
            for kind in CONVOLUTIONS
        ),
    ]
    for model, words in cases:
        images = torch.rand(2, *model.image_shape)
        with pytest.raises((BronetError, RuntimeError)):
            model.eval()(images)
        with pytest.raises(BronetError, match=words):
            certified_radius(model, images)


MISTAKES = """
import torch, bronet
from bronet.layers import BROConv2d, Flatten, LastLayerNormalized
from bronet.models import Chain

model = Chain((1, 2, 2), {"flatten": Flatten()}, LastLayerNormalized(4, 3))
images = torch.rand(5, 1, 2, 2)
for call in (
    lambda: bronet.certified_radius("model", images),
    lambda: bronet.certified_radius(torch.nn.Linear(2, 2), images),
    lambda: bronet.certified_radius(model, torch.tensor(1.0)),
    lambda: bronet.certified_radius(model, "images"),
    lambda: bronet.prove(torch.nn.Linear(2, 2)),
    lambda: bronet.prove(torch.nn.Flatten(), (1,)),
    lambda: bronet.certified_radius(model, torch.rand(5, 3, 2, 2)),
    lambda: bronet.certified_radius(model, torch.rand(5, 1, 4, 4)),
    lambda: bronet.certified_radius(model, images, batch_size=-1),
    lambda: bronet.prove(model, (1, -2, -2)),
    lambda: model((images * 255).to(torch.uint8)),
    lambda: BROConv2d(1, 2, (3, 3)),
    lambda: BROConv2d(1, 2, 3, rank=1)((images * 255).to(torch.uint8)),
    lambda: bronet.losses.drawn_labels(torch.rand(2, 3), torch.rand(2, 4)),
):
    try:
        call()
    except bronet.BronetError as error:
        print(error)
radii = bronet.certified_radius(model, images)
for wrapped in (
    torch.compile(model, backend="eager"),
    torch.nn.DataParallel(model),
    torch.optim.swa_utils.AveragedModel(model),
):
    print(torch.equal(bronet.certified_radius(wrapped, images), radii))
print(torch.equal(bronet.certified_radius(model, images.numpy()), radii))
# A product with one column may add in another order than one with five.
print(torch.allclose(bronet.certified_radius(model, images[0]), radii[0], rtol=1e3 * torch.finfo(radii.dtype).eps))
"""


REFUSED = (
    ("model", "str"),
    ("Linear", "shape (1, 2, 2)"),
    ("images", "()"),
    ("images", "str"),
    ("image_shape", "None"),
    ("Flatten", "shape (1,)"),
    ("images", "shape (3, 2, 2)"),
    ("head", "activations of shape (16,)"),
    ("batch_size", "-1"),
    ("image_shape", "(1, -2, -2)"),
    ("images", "torch.uint8"),
    ("kernel_size", "(3, 3)"),
    ("BROConv2d", "torch.uint8"),
    ("probabilities", "(2, 4)"),
)
"""What each mistake is about, and the value that its line names."""


def test_what_is_no_model_or_no_batch_is_one_clear_line() -> None:
    """In a process of its own, where annotations are not checked."""
    done = subprocess.run([sys.executable, "-c", MISTAKES], capture_output=True, text=True, check=True)
    *refused, first, second, third, fourth, fifth = done.stdout.splitlines()
    for line, (quantity, value) in zip(refused, REFUSED, strict=True):
        assert line.startswith(f"{quantity} ")
        assert f"got {value}" in line
    # What is wrapped in three ways, arrays, and one image without a batch.
    assert {first, second, third, fourth, fifth} == {"True"}


def test_pixels_outside_the_unit_interval_are_warned_of() -> None:
    with pytest.warns(UserWarning, match=r"images lie outside \[0, 1\]"):
        certified_radius(Chain(MaxMin()), 255 * _images())


def test_a_layer_used_twice_is_proved_twice() -> None:
    shift = Bias(4, dtype=torch.float64)
    nn.init.normal_(shift.bias)
    model = Chain(shift, MaxMin(), shift).eval()
    assert [name for name, _ in prove(model).layers].count("body.1") == 2
    torch.testing.assert_close(prove(model).logits(_images()), model(_images()))


def test_what_a_forward_does_behind_its_head_is_proved_with_it() -> None:
    class Twice(Chain):
        def forward(self, images: Tensor) -> Tensor:
            return 2 * super().forward(images)

    once, twice = prove(Chain(MaxMin())), prove(Twice(MaxMin()))
    torch.testing.assert_close(twice.logits(_images()), 2 * once.logits(_images()))
    assert twice.constants[-1] == pytest.approx(2 * once.constants[-1])


def test_torchs_own_layers_are_proved_beside_ours() -> None:
    network = prove(Chain(nn.Linear(4, 4)))
    x, y = _images(), _images() + 0.1 * draw(5, 1, 2, 2)
    moved = (network.logits(x) - network.logits(y)).norm(dim=1)
    assert (moved <= network.constants[-1] * (x - y).flatten(1).norm(dim=1)).all()


def test_autocast_and_flushing_to_zero_do_not_change_a_certificate() -> None:
    network = prove(Chain(Bias(4, dtype=torch.float64), MaxMin()))
    plain = network.certify(_images())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(network.certify(_images()).radius, plain.radius)
    try:
        torch.set_flush_denormal(True)
        assert torch.equal(network.certify(_images()).radius, plain.radius)
    finally:
        torch.set_flush_denormal(False)


def test_radii_do_not_depend_on_the_company_an_image_keeps() -> None:
    network = prove(Chain(MaxMin()))
    together = network.certify(_images(64)).radius
    alone = torch.cat([network.certify(image[None]).radius for image in _images(64)])
    torch.testing.assert_close(together, alone, rtol=1e-12, atol=1e-14)


# Assumption 4: no overflow inside the ball.


def test_a_constant_classifier_has_a_finite_radius() -> None:
    """Far enough away its zero rows meet infinite activations: 0 times infinity is no logit."""
    model = Chain()
    with torch.no_grad():
        model.head.weight.zero_()
        model.head.bias.copy_(torch.tensor([1.0, 0.0, 0.0]))
    network = prove(model)
    radius = float(network.certify(_images()).radius.min())
    assert 1e6 < radius < math.inf
    far = _images() + radius / 4
    assert (network.logits(far).argmax(dim=1) == 0).all()


def test_images_that_overflow_have_no_radius() -> None:
    certificate = prove(Chain()).certify(_images() * 1e300)
    assert certificate.radius.eq(0).all()


def test_activations_whose_squares_vanish_still_have_a_rounding_budget() -> None:
    model = Chain()
    with torch.no_grad():
        model.normalization.mean.zero_()
    certificate = prove(model).certify(_images() * 1e-170)
    assert (certificate.rounding > 1e-170 * 1e-17).all()


# The proofs of eigenvalues.


def test_a_matrix_without_positive_eigenvalues_ends_the_search() -> None:
    assert 0 <= largest_eigenvalue(-torch.eye(3, dtype=torch.float64)) <= 1 + 1e-9


def test_a_wrong_factorisation_cannot_make_a_wrong_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """A solver that returns nonsense and reports success only makes the bound loose."""
    M = torch.diag(torch.tensor([4.0, 1.0, 0.5], dtype=torch.float64)) + 0.01

    def lying(A: Tensor) -> tuple[Tensor, Tensor]:
        return torch.eye(3, dtype=torch.float64).expand_as(A), torch.zeros(A.shape[:-2], dtype=torch.int32)

    def low(_: Tensor) -> float:
        return 0.5

    monkeypatch.setattr("torch.linalg.cholesky_ex", lying)
    monkeypatch.setattr("bronet.proof.spectral._estimate", low)
    assert largest_eigenvalue(M) >= float(torch.linalg.eigvalsh(M).max())


@pytest.mark.parametrize("exponent", [-1074, -1022, -500, 0, 500, 1023])
def test_the_scale_is_a_power_of_two_at_the_largest_entry(exponent: int) -> None:
    A = torch.tensor([[math.ldexp(1.0, exponent), 0.0]], dtype=torch.float64)
    assert float((A / power_of_two_scale(A)).max()) == 1
    with pytest.raises(BronetError, match="weights must be finite"):
        power_of_two_scale(A * math.inf)

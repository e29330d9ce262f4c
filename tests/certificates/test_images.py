"""Certificates: one claim, that no point inside the radius changes the prediction of the float64 program."""

import pytest
import torch
from torch import Tensor, nn

from bronet import BronetError, build_model, certified_radius, l2_pgd, prove
from bronet.certificates.run import naive_gap_lipschitz, naive_radius
from bronet.data import load_dataset
from bronet.layers import LastLayerNormalized, LipschitzLayer, Normalization
from bronet.layers.shape import Flatten
from bronet.models import CertifiableModel
from bronet.recipe.architecture import BRONetArchitecture
from bronet.recipe.schema import DATASETS

DIGITS = BRONetArchitecture(
    width=8, depth=2, dense_depth=1, dense_width=32, stem_kernel=3, stem_stride=1, stem_padding=1
)


class Linear(CertifiableModel):
    """A linear classifier: its radius is known exactly."""

    def __init__(self) -> None:
        super().__init__((1, 2, 2))
        self.normalization: LipschitzLayer = Normalization((0.5,))
        self.flatten = Flatten()
        self.head = LastLayerNormalized(4, 3)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.flatten(self.normalization(images)))


@pytest.fixture(scope="module")
def trained() -> tuple[CertifiableModel, Tensor, Tensor]:
    """Return a small BRONet after a few dozen steps on the digits, with images and labels."""
    data = load_dataset("digits", "train")
    model = build_model(DIGITS, DATASETS["digits"], seed=0)
    images, labels = data.pixels(torch.arange(len(data))), data.labels
    optimiser = torch.optim.NAdam(model.parameters(), lr=5e-3)
    for step in range(40):
        index = torch.arange(step * 64, (step + 1) * 64) % len(data)
        optimiser.zero_grad()
        nn.functional.cross_entropy(8 * model(images[index]), labels[index]).backward()
        optimiser.step()
    return model.eval(), images[:64].double(), labels[:64]


def test_no_images_have_no_radii() -> None:
    model = build_model(DIGITS, DATASETS["digits"], seed=0)
    assert certified_radius(model, torch.zeros(0, 1, 8, 8)).shape == (0,)


def test_radius_of_a_linear_classifier_is_the_distance_to_the_nearest_boundary() -> None:
    model = Linear()
    x = torch.rand(20, 1, 2, 2, dtype=torch.float64)
    W, b = model.head.rows().detach().double(), model.head.bias.detach().double()
    weight = model.head.weight.detach().double()
    W = weight / weight.norm(dim=1, keepdim=True)
    logits = (x - 0.5).flatten(1) @ W.mT + b
    top = logits.argmax(1)
    distance = (logits.gather(1, top[:, None]) - logits) / (W[top] - W[:, None]).norm(dim=-1).mT
    distance[torch.arange(20), top] = torch.inf
    radius = certified_radius(model, x)
    assert (radius <= distance.amin(1)).all()
    torch.testing.assert_close(radius, distance.amin(1), rtol=1e-9, atol=1e-12)


def test_ties_are_not_certified() -> None:
    model = Linear()
    nn.init.zeros_(model.head.weight)
    assert certified_radius(model, torch.rand(3, 1, 2, 2)).eq(0).all()


def test_pgd_inside_the_radius_never_changes_a_certified_prediction(
    trained: tuple[CertifiableModel, Tensor, Tensor],
) -> None:
    model, images, _ = trained
    network = prove(model)
    certificate = network.certify(images)
    assert certificate.radius.median() > 0.05
    for fraction in (0.5, 0.999999):
        attack = l2_pgd(network.logits, images, certificate.prediction, eps=fraction * certificate.radius, steps=30)
        assert not attack.success.any()
    beyond = l2_pgd(network.logits, images, certificate.prediction, eps=20 * certificate.radius, steps=30)
    assert beyond.success.any()  # the attack is able to break images, just not inside the radius


def test_points_of_the_ball_keep_their_class_along_the_steepest_direction(
    trained: tuple[CertifiableModel, Tensor, Tensor],
) -> None:
    model, images, _ = trained
    network = prove(model)
    certificate = network.certify(images)
    x = images.clone().requires_grad_()
    logits = network.logits(x)
    runner_up = logits.detach().scatter(1, certificate.prediction[:, None], -torch.inf).argmax(1)
    margin = logits.gather(1, certificate.prediction[:, None]) - logits.gather(1, runner_up[:, None])
    (gradient,) = torch.autograd.grad(margin.sum(), x)
    step = gradient / gradient.flatten(1).norm(dim=1).view(-1, 1, 1, 1)
    moved = images - (1 - 1e-12) * certificate.radius.view(-1, 1, 1, 1) * step
    assert torch.equal(network.logits(moved).argmax(1), certificate.prediction)


def test_proof_costs_far_below_one_percent_of_the_naive_radius(
    trained: tuple[CertifiableModel, Tensor, Tensor],
) -> None:
    model, images, _ = trained
    radius = certified_radius(model, images)
    naive = naive_radius(model, images, naive_gap_lipschitz(model))
    assert ((naive - radius).abs() <= 1e-3 * naive + 1e-6).all()


def test_rounding_budget_is_tiny_but_not_zero(trained: tuple[CertifiableModel, Tensor, Tensor]) -> None:
    model, images, _ = trained
    certificate = prove(model).certify(images)
    assert (certificate.rounding > 0).all()
    assert (certificate.rounding < 1e-9).all()


def test_naive_estimates_leave_the_model_as_it_was(trained: tuple[CertifiableModel, Tensor, Tensor]) -> None:
    model, _, _ = trained
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    naive_gap_lipschitz(model)
    assert all(torch.equal(before[name], buffer) for name, buffer in model.named_buffers())


def test_certificate_uses_the_weights_loaded_last(trained: tuple[CertifiableModel, Tensor, Tensor]) -> None:
    model, images, _ = trained
    other = build_model(DIGITS, DATASETS["digits"], seed=9).eval()
    stale = certified_radius(other, images)
    other.load_state_dict(model.state_dict())
    fresh = certified_radius(other, images)
    assert not torch.equal(stale, fresh)
    assert torch.equal(fresh, certified_radius(model, images))


def test_weights_stored_in_bfloat16_are_certified_as_stored(trained: tuple[CertifiableModel, Tensor, Tensor]) -> None:
    model, images, _ = trained
    stored = build_model(DIGITS, DATASETS["digits"], seed=0, dtype=torch.bfloat16).eval()
    stored.load_state_dict(model.state_dict())
    certificate = prove(stored).certify(images)
    attack = l2_pgd(prove(stored).logits, images, certificate.prediction, eps=certificate.radius, steps=20)
    assert certificate.radius.median() > 0.05
    assert not attack.success.any()


def test_targeted_radii_bound_the_distance_to_each_class(trained: tuple[CertifiableModel, Tensor, Tensor]) -> None:
    model, images, _ = trained
    certificate = prove(model).certify(images)
    assert torch.equal(certificate.targeted.amin(1), certificate.radius)
    own = certificate.targeted.gather(1, certificate.prediction[:, None])
    assert own.isinf().all()


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.full((1, 1, 8, 8), float("nan")), "images must be finite"),
        (torch.zeros(1, 1, 8, 8, dtype=torch.uint8), "images must be floating point"),
        (torch.zeros(1, 3, 8, 8), "images must have shape"),
    ],
)
def test_bad_images_are_refused(trained: tuple[CertifiableModel, Tensor, Tensor], images: Tensor, message: str) -> None:
    with pytest.raises(BronetError, match=message):
        prove(trained[0]).certify(images)


def test_non_finite_weights_have_no_certificate() -> None:
    model = build_model(DIGITS, DATASETS["digits"])
    with torch.no_grad():
        dict(model.named_parameters())["backbone.0.linear.weight"][0, 0, 0, 0] = float("nan")
    with pytest.raises(BronetError, match="finite"):
        prove(model)

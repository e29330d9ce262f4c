"""LipNeXt's layers and network: shifts and orthogonal matrices are isometries, and the network keeps its constant."""

import pytest
import torch
from torch import Tensor

from bronet.errors import BronetError
from bronet.graph import prove
from bronet.layers.lipnext import HalfAbs, OrthogonalMix, Shift
from bronet.models import build_model
from bronet.recipe.architecture import LipNeXtArchitecture
from bronet.recipe.schema import DatasetSpec
from jacobian import singular_values

IMAGES = DatasetSpec("small", 3, 8, 8, 5)
CHANNELS, MOVED = 9, 2


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_a_shift_moves_four_groups_by_one_pixel_and_keeps_every_number() -> None:
    x = draw(2, CHANNELS, 3, 4)
    y = Shift(CHANNELS, MOVED)(x)
    for group, (down, right) in enumerate(((1, 0), (-1, 0), (0, 1), (0, -1))):
        own = slice(MOVED * group, MOVED * (group + 1))
        for i in range(3):
            for j in range(4):
                assert torch.equal(y[:, own, (i + down) % 3, (j + right) % 4], x[:, own, i, j])
    assert torch.equal(y[:, 4 * MOVED :], x[:, 4 * MOVED :])
    with pytest.raises(BronetError, match="at most a quarter of the 9 channels, got 3"):
        Shift(CHANNELS, 3)


@pytest.mark.parametrize("layer", [OrthogonalMix(CHANNELS), OrthogonalMix(CHANNELS, MOVED), Shift(CHANNELS, MOVED)])
def test_all_singular_values_of_an_orthogonal_layer_are_one(layer: torch.nn.Module) -> None:
    values = singular_values(layer.double(), (CHANNELS, 3, 2))
    assert float((values - 1).abs().max()) < 1e-6  # the matrices were made in float32


def test_half_of_the_channels_lose_their_sign() -> None:
    x = draw(2, 5, 2, 2)
    y = HalfAbs()(x)
    assert torch.equal(y[:, :3], x[:, :3].abs())
    assert torch.equal(y[:, 3:], x[:, 3:])


@pytest.mark.parametrize("mixing", ["manifold", "reflectors"])
def test_the_proved_constant_of_a_network_lies_above_its_jacobians_and_close_to_one(mixing: str) -> None:
    architecture = LipNeXtArchitecture(depth=3, width=16, patch=2, moved="1/8", mixing=mixing)  # type: ignore[arg-type]
    model = build_model(architecture, IMAGES, seed=0, dtype=torch.float64).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1e-3 * draw(*parameter.shape))  # positions and biases, too; matrices leave the manifold
    network = prove(model)
    assert network.lipschitz < 1.05
    at, constant = torch.rand(4, 3, 8, 8, dtype=torch.float64), network.lipschitz * network.head.lipschitz
    for image in at:
        J = torch.autograd.functional.jacobian(lambda x: model(x)[0], image[None])
        assert float(torch.linalg.matrix_norm(J.reshape(5, -1), 2)) <= constant
    assert torch.equal(network.certify(at).prediction, model(at).argmax(dim=1))


def test_images_that_do_not_fit_are_named() -> None:
    with pytest.raises(BronetError, match=r"fewer numbers than model.width = 16, got 3 x 8 x 8"):
        build_model(LipNeXtArchitecture(depth=1, width=16), IMAGES)
    with pytest.raises(BronetError, match="0 < moved <= 1/4, got 1/2"):
        LipNeXtArchitecture(moved="1/2")

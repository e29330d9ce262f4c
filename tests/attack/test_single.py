"""One image under attack: what is found lies between the certified radius and the budget."""

import pytest
import torch
from torch import Tensor

from bronet.attack.judge import HALVINGS, Finding, Progress, attack_image, distances, drawn_nearer
from bronet.data import load_dataset
from bronet.graph import ProvedNetwork, prove
from bronet.models import CertifiableModel
from bronet.run.folder import open_run
from bronet.run.weights import load_model
from tiny_run import train_tiny_run

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[CertifiableModel, ProvedNetwork]:
    run = open_run(train_tiny_run(tmp_path_factory.mktemp("run") / "tiny"))
    model = load_model(run).requires_grad_(False)
    return model, prove(model)


def digit(number: int) -> Tensor:
    return load_dataset("digits", "test").pixels(torch.tensor([number]), dtype=torch.float64)


def note_nothing(done: int, total: int) -> None:
    """Progress that nobody watches."""


def attacked(
    trained: tuple[CertifiableModel, ProvedNetwork],
    image: Tensor,
    *,
    eps: float,
    steps: int,
    restarts: int,
    progress: Progress = note_nothing,
) -> Finding:
    model, network = trained
    proved = network.certify(image)
    return attack_image(
        model,
        network.logits,
        image,
        proved.prediction,
        radius=float(proved.radius),
        eps=eps,
        steps=steps,
        restarts=restarts,
        progress=progress,
    )


def first_pixel_decides(images: Tensor) -> Tensor:
    """Class 1 where the first pixel is above a half."""
    return torch.stack([torch.full((len(images),), 0.5, dtype=images.dtype), images.flatten(1)[:, 0]], dim=1)


def test_a_point_is_drawn_to_the_border_and_stays_beyond_it() -> None:
    images, points = torch.zeros(3, 1, 2, 2, dtype=torch.float64), torch.ones(3, 1, 2, 2, dtype=torch.float64)
    points[2] = 0.25
    labels = torch.tensor([0, 1, 0])
    nearer = drawn_nearer(first_pixel_decides, images, points, labels)
    assert first_pixel_decides(nearer).argmax(dim=1).tolist() == [1, 1, 0]
    assert 0.5 < float(nearer[0, 0, 0, 0]) <= 0.5 + 2.0**-HALVINGS
    assert torch.equal(nearer[1:], points[1:])  # neither has another class than its label: both stay


def test_inside_the_radius_nothing_is_found(trained: tuple[CertifiableModel, ProvedNetwork]) -> None:
    _, network = trained
    for number in range(5):
        image = digit(number)
        radius = float(network.certify(image).radius)
        finding = attacked(trained, image, eps=radius, steps=20, restarts=2)
        assert not finding.success
        assert not finding.refutes
        assert finding.radius == radius


def test_what_is_found_beyond_the_radius_is_near_and_of_another_class(
    trained: tuple[CertifiableModel, ProvedNetwork],
) -> None:
    _, network = trained
    for number in range(5):
        image = digit(number)
        finding = attacked(trained, image, eps=4.0, steps=20, restarts=1)
        assert finding.success
        assert int(network.logits(finding.point).argmax()) == finding.found != finding.prediction
        assert finding.distance == float(distances(image, finding.point)[0])
        assert finding.radius <= finding.distance < 4.0
        # Any shorter step along the same segment leads back to the prediction.
        back = image + (1 - 2.0**-10) * (finding.point - image)
        assert int(network.logits(back).argmax()) == finding.prediction


def test_progress_counts_every_pass_and_can_end_the_search(trained: tuple[CertifiableModel, ProvedNetwork]) -> None:
    seen: list[tuple[int, int]] = []

    def note(done: int, total: int) -> None:
        seen.append((done, total))

    attacked(trained, digit(0), eps=0.1, steps=3, restarts=2, progress=note)
    assert seen == [(number, 9) for number in range(9)]

    def stop(done: int, total: int) -> None:
        if done == 2:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        attacked(trained, digit(0), eps=0.1, steps=10**9, restarts=1, progress=stop)

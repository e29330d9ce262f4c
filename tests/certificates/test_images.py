"""Certificates: one claim, that no point inside the radius changes the prediction of the float64 program."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import bronet
from bronet import BronetError, Chain, build_model, certified_radius, certify, l2_pgd, prove
from bronet.certificates.run import certify_run, naive_gap_lipschitz, naive_radius
from bronet.data import load_dataset
from bronet.graph import network as graph_network
from bronet.layers import BROLinear, LastLayerNormalized, LipschitzLayer, Normalization
from bronet.layers.shape import Flatten
from bronet.models import CertifiableModel
from bronet.proof import reflector
from bronet.proof.proved_map import FLOAT32, executed_in
from bronet.recipe.architecture import BRONetArchitecture
from bronet.recipe.schema import DATASETS
from bronet.report.evidence import read_evidence
from bronet.run.certificate import read_certificate, read_certificate_rows
from bronet.run.folder import RunFolder
from bronet.run.weights import load_model
from tiny_run import train_tiny_run

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


def test_vectors_of_a_chain_of_vectors_have_radii() -> None:
    model, vectors = Chain((6,), BROLinear(6, 8), LastLayerNormalized(8, 3)), torch.rand(4, 6)
    radius = certified_radius(model, vectors)
    assert (radius > 0).all()
    assert certified_radius(model, vectors[0]) == pytest.approx(float(radius[0]), rel=1e-9)
    assert certify(model, vectors).columns["index"] == [0, 1, 2, 3]
    with pytest.raises(BronetError, match="images must have shape"):
        certified_radius(model, torch.rand(1, 1, 2, 3))


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


def test_a_batch_in_parts_has_the_same_radii_whatever_the_number_of_threads(
    trained: tuple[CertifiableModel, Tensor, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Line by line of the spectrum as well, and in the arithmetic that the caller has chosen."""
    model, images, _ = trained
    threads = torch.get_num_threads()
    with executed_in(FLOAT32):
        network = prove(model)
        whole = network.certify(images)
        monkeypatch.setattr(reflector, "_SPECTRUM_AT_ONCE", 1)
        monkeypatch.setattr(graph_network, "_NUMBERS_AT_ONCE", 7 * 512)
        assert network.images_at_once == 7
        try:
            torch.set_num_threads(3)
            parts = network.certify(images)
            assert torch.get_num_threads() == 3
        finally:
            torch.set_num_threads(threads)
    assert torch.equal(whole.prediction, parts.prediction)
    torch.testing.assert_close(parts.radius, whole.radius, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(parts.rounding, whole.rounding, rtol=1e-9, atol=0.0)


def test_proof_costs_far_below_one_percent_of_the_naive_radius(
    trained: tuple[CertifiableModel, Tensor, Tensor],
) -> None:
    model, images, _ = trained
    radius = certified_radius(model, images)
    naive = naive_radius(model, images, naive_gap_lipschitz(model, prove(model)))
    assert ((naive - radius).abs() <= 1e-3 * naive + 1e-6).all()


def test_rounding_budget_is_tiny_but_not_zero(trained: tuple[CertifiableModel, Tensor, Tensor]) -> None:
    model, images, _ = trained
    certificate = prove(model).certify(images)
    assert (certificate.rounding > 0).all()
    assert (certificate.rounding < 1e-9).all()


def test_naive_estimates_leave_the_model_as_it_was(trained: tuple[CertifiableModel, Tensor, Tensor]) -> None:
    model, _, _ = trained
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    naive_gap_lipschitz(model, prove(model))
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


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run of the digits that was certified by the command's own function."""
    folder = train_tiny_run(tmp_path_factory.mktemp("certify") / "run")
    certify_run(folder, limit=120)
    return RunFolder(folder)


@pytest.mark.parametrize("kind", ["image set", "loader", "tensors"])
def test_rows_are_those_of_the_command_bit_for_bit(run: RunFolder, kind: str) -> None:
    images = load_dataset("digits", "test").subset(torch.arange(120))
    pixels = images.pixels(torch.arange(120), dtype=torch.float64)
    stored = TensorDataset(pixels, images.labels)
    wanted = read_certificate_rows(run.certificate().rows)
    model = load_model(run)
    found = {
        "image set": lambda: certify(model, images),
        "loader": lambda: certify(model, DataLoader(stored, batch_size=7)),
        "tensors": lambda: certify(model, pixels, images.labels.numpy()),
    }[kind]()
    assert list(found.rows) == wanted
    assert found.lipschitz == read_certificate(run.certificate().facts).lipschitz


def test_a_csv_file_of_certificates_is_that_of_the_command(run: RunFolder, tmp_path: Path) -> None:
    images = load_dataset("digits", "test").subset(torch.arange(120))
    certify(load_model(run), images).to_csv(tmp_path / "rows.csv")
    assert (tmp_path / "rows.csv").read_bytes() == run.certificate().rows.read_bytes()


def test_certificates_count_as_a_report_does(run: RunFolder) -> None:
    found = certify(load_model(run), load_dataset("digits", "test").subset(torch.arange(120)))
    counted = read_evidence(run).statistics
    assert found.clean_accuracy == counted.clean_accuracy
    assert all(found.accuracy(eps) == share for eps, share in counted.certified.items())
    assert found.accuracy(0.25) == found.accuracy("1/4")
    (curve,) = (line for line in found.plot(["1/4"]).axes[0].lines if line.get_label() == "certified")
    assert torch.as_tensor(curve.get_ydata())[0] == found.accuracy(0)


def test_images_without_labels_have_radii_and_no_accuracy(run: RunFolder) -> None:
    pixels = load_dataset("digits", "test").pixels(torch.arange(3))
    found = certify(load_model(run), pixels)
    torch.testing.assert_close(found.radius, certified_radius(load_model(run), pixels), rtol=1e-6, atol=1e-6)
    assert not {"label", "correct", "file"} & found.columns.keys()
    for refused in (lambda: found.accuracy(0.1), lambda: found.clean_accuracy, found.plot):
        with pytest.raises(BronetError, match="labels"):
            refused()


def test_a_notebook_shows_the_first_rows_and_no_markup_of_others(run: RunFolder) -> None:
    images = replace(load_dataset("digits", "test").subset(torch.arange(12)), files=("<script>",) * 12)
    text = certify(load_model(run), images)._repr_html_()
    assert "<script>" not in text
    assert text.count("<tr>") == 11


def test_data_frames_have_the_columns_of_the_rows(run: RunFolder) -> None:
    pytest.importorskip("pandas", reason="pandas is not installed")
    frame = certify(load_model(run), load_dataset("digits", "test").subset(torch.arange(12))).to_pandas()
    assert [row.radius for row in read_certificate_rows(run.certificate().rows)[:12]] == frame["radius"].tolist()


def test_rows_of_class_folders_name_their_files(tmp_path: Path) -> None:
    for name in ("ant", "bee, wasp"):
        (tmp_path / name).mkdir()
        Image.new("L", (2, 2), 90 + len(name)).save(tmp_path / name / "one.png")
    found = certify(Linear(), bronet.data.folder(tmp_path))
    assert [row.file for row in found.rows] == ["ant/one.png", "bee, wasp/one.png"]
    assert found.classes == ("ant", "bee, wasp")
    found.to_csv(tmp_path / "rows.csv")
    assert read_certificate_rows(tmp_path / "rows.csv") == list(found.rows)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0, 1], "labels must be one for each"),
        ([0, 1, 3], "labels must be whole numbers from 0 to 2, got 0 to 3"),
        ([0.0, 1.0, 2.0], "labels must be whole numbers"),
        ([0, 1, 2, 2], "labels must be one for each of the 3 images, got 4"),
    ],
)
def test_labels_that_do_not_fit_are_refused(labels: list[float], message: str) -> None:
    with pytest.raises(BronetError, match=message):
        certify(Linear(), torch.rand(3, 1, 2, 2), labels)


def test_labels_are_given_once() -> None:
    images = TensorDataset(torch.rand(3, 1, 2, 2), torch.zeros(3, dtype=torch.int64))
    with pytest.raises(BronetError, match="left out"):
        certify(Linear(), images, [0, 0, 0])


def test_certifying_leaves_a_model_in_its_modes() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.Dropout(), nn.Linear(3, 3))
    model[2].eval()
    certify(model, torch.rand(3, 1, 2, 2))
    assert [part.training for part in model] == [True, True, False, True]

"""The drawings of the documentation are those that its script draws, and what they show is true."""

import re
from pathlib import Path

import pytest
import torch

import bronet
from bronet.graph import prove
from bronet.graph.model import layers_of
from bronet.recipe.architecture import NAMED
from lab.figures import drawings, idea, networks, point_networks

FOLDER = Path(__file__).parents[2] / "docs" / "figures"
EXACT = ("bro-conv", "shapes", "lipconvnet", "bronet-m", "bronet-imagenet")
"""Drawings without trained numbers: the same bytes everywhere."""
NUMBER = re.compile(r"-?\d+\.\d+|-?\d+")
POINT = 8
"""Tolerance for the rest, in points of a sheet 576 wide: training amplifies how processors round (2.6 so far)."""

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def drawn(one_thread: None) -> dict[str, str]:
    return drawings()


def committed(name: str) -> str:
    return (FOLDER / f"{name}.svg").read_text(encoding="utf-8")


def shapes_of(svg: str, group: str) -> list[list[float]]:
    """Return the numbers of every path in the groups of this kind, glyphs left aside."""
    found = re.findall(rf'<g id="{group}_\d+">(.*?)</g>', svg, re.S)
    paths = [path for text in found for path in re.findall(r' d="([^"]*)"', text)]
    return [[float(number) for number in NUMBER.findall(path)] for path in paths]


def test_every_drawing_is_committed_and_no_other(drawn: dict[str, str]) -> None:
    assert {path.stem for path in FOLDER.glob("*.svg")} == drawn.keys()


@pytest.mark.parametrize("name", EXACT)
def test_a_diagram_is_drawn_again_byte_for_byte(name: str, drawn: dict[str, str]) -> None:
    assert drawn[name] == committed(name), "run: make figures"


@pytest.mark.parametrize(("name", "group", "count"), [("stretch", "patch", 45), ("regions", "PatchCollection", 90)])
def test_balls_are_drawn_again_where_they_were(name: str, group: str, count: int, drawn: dict[str, str]) -> None:
    old, new = shapes_of(committed(name), group), shapes_of(drawn[name], group)
    assert len(old) == len(new) >= count
    for left, right in zip(old, new, strict=True):
        assert left == pytest.approx(right, abs=POINT)


def test_drawings_use_the_palette_only(drawn: dict[str, str]) -> None:
    from lab.figures.canvas import COLOURS

    for name, svg in drawn.items():
        assert set(re.findall(r"#[0-9a-f]{6}\b", svg)) <= set(COLOURS.values()), name


def test_orthogonal_layers_keep_the_ring_and_ordinary_ones_do_not() -> None:
    with torch.random.fork_rng(devices=[]):
        kept, stretched = idea.rings(idea.orthogonal_layers()), idea.rings(idea.plain_layers())
    for ring in kept:
        lengths = (ring[:-1] - ring[-1]).norm(dim=1)
        torch.testing.assert_close(lengths, torch.ones_like(lengths), atol=1e-5, rtol=0)
    assert idea.stretch(stretched[-1]) > 3


def test_no_ball_of_the_drawing_crosses_a_boundary() -> None:
    points, model, plain = idea.scene()
    network, generator = prove(model), torch.Generator().manual_seed(0)
    certificate = network.certify(points.images)
    ordinary = point_networks.ordinary_proof(plain, points, side=2)
    assert torch.equal(certificate.prediction, points.label)
    assert ordinary.correct.all()
    assert 4 < certificate.radius.median() / ordinary.radius.median() < 9  # "about six times larger"
    for _ in range(200):
        way = torch.randn(points.images.shape, generator=generator, dtype=torch.float64)
        way = way / way.flatten(1).norm(dim=1)[:, None, None, None]
        moved = points.images + 0.999999 * certificate.radius[:, None, None, None] * way
        assert torch.equal(network.logits(moved).argmax(1), points.label)


@pytest.mark.parametrize(("name", "dataset"), [("lipconvnet-5-32", "cifar10"), ("bronet-digits", "digits")])
def test_the_drawn_shapes_are_those_of_a_forward_pass(name: str, dataset: str) -> None:
    model = bronet.create_model(name, dataset=dataset).eval()
    x, seen = torch.zeros(1, *model.image_shape), []
    with torch.no_grad():
        for layer in [layer for _, layer in layers_of(model)]:
            x = layer(x)
            seen.append(tuple(x.shape[1:]))
    meta = bronet.build_model(NAMED[name], bronet.recipe.dataset_spec(dataset), device="meta")
    assert [link.output for link in networks.links(meta)] == seen

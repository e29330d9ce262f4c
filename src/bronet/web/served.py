"""What is served: networks with their proofs, some images to choose from, and the curves that their folders hold.

A folder is read at the start; its network is loaded and proved when it is first asked for.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from safetensors.torch import load_file
from torch import Tensor, nn

from bronet.certificates.run import certify_images, layer_bounds, naive_gap_lipschitz
from bronet.data import ImageSet, load_images
from bronet.data.load import SAMPLED
from bronet.errors import BronetError
from bronet.graph.network import ProvedNetwork, prove
from bronet.recipe.schema import DataRecipe
from bronet.report.evidence import Evidence, read_evidence
from bronet.report.gallery import DRAWABLE_CHANNELS
from bronet.run.certificate import LayerBound, Row, network_hashes
from bronet.run.folder import RunFolder, open_run
from bronet.run.weights import load_model

DEFAULT_RUN = Path("runs/quickstart")
WEIGHTS = "ordinary-digits.safetensors"
FOUND = "found"
PUBLISHED = "published-radii.npz"
PARTS = 10_000
"""Parts of the unit in which published radii are counted."""
ORDINARY_DATA = "digits"
ORDINARY_SHAPE = (1, 8, 8)


@dataclass(frozen=True, eq=False)
class Card:
    """What is known of a run without its network: `evidence` is None where `remark` says why.

    `published` are the radii of a published network on its whole test set, rounded down; 0 where it is wrong.
    """

    name: str
    folder: RunFolder
    evidence: Evidence | None
    remark: str
    published: Float[np.ndarray, " images"] | None


@dataclass(frozen=True, eq=False)
class Comparison:
    """An ordinary network for the digits beside a certified one, and what is known of both on all test images.

    The ordinary one is as large and as accurate, and nothing of it is proved: `python -m lab.ordinary_network` trains
    it and attacks it on every test image. `found` is how far away another answer was found, an upper bound on its
    robustness as a certified radius is a lower one: 0 where it is wrong of itself, inf where nothing was found.
    `rows` are the certified network's.
    """

    ordinary: nn.Sequential
    found: Float[Tensor, " images"]
    rows: tuple[Row, ...]

    @property
    def beaten(self) -> float:
        """The share of the images that the ordinary network gets right but loses within their certified radius."""
        radii = torch.tensor([row.radius for row in self.rows], dtype=torch.float64)
        return float(((self.found > 0) & (self.found <= radii)).double().mean())


@dataclass(frozen=True, kw_only=True)
class Served:
    """A network that can be asked: model, proof, layers' bounds, class names, and sample images if there are any."""

    model: nn.Module
    network: ProvedNetwork
    bounds: tuple[LayerBound, ...]
    classes: tuple[str, ...]
    samples: ImageSet | None
    remark: str
    comparison: Comparison | None


def read_cards(runs: Sequence[RunFolder | Path | str]) -> list[Card]:
    """Return the cards of the runs; without any, that of the quick start. A run without weights is refused."""
    if not runs and not RunFolder(DEFAULT_RUN).recipe_file.is_file():
        raise BronetError(
            f"give the folder of a run, got none and there is no {DEFAULT_RUN}; `bronet quickstart` makes it, "
            "or try: bronet serve bronet-digits/digits"
        )
    folders = [open_run(run) for run in runs or [DEFAULT_RUN]]
    names = [folder.path.resolve().name for folder in folders]
    cards = []
    for name, folder in zip(names, folders, strict=True):
        network, channels = network_hashes(folder), folder.recipe.data.spec().channels
        if channels not in DRAWABLE_CHANNELS:
            raise BronetError(f"images must have 1 or 3 channels to be drawn, got {channels} in {folder.path}")
        evidence, remark = _evidence(folder, network)
        shown = name if names.count(name) == 1 else str(folder.path)
        cards.append(Card(shown, folder, evidence, remark, published_radii(network["weights_sha256"])))
    return cards


def published_radii(weights_sha256: str) -> Float[np.ndarray, " images"] | None:
    """Return the published radii of a network of which this package knows them; `python -m lab.published_radii`."""
    with np.load(str(files("bronet.web").joinpath(PUBLISHED)), allow_pickle=False) as known:
        return known[weights_sha256] / PARTS if weights_sha256 in known else None


def _evidence(folder: RunFolder, network: dict[str, str]) -> tuple[Evidence | None, str]:
    """Return what the folder proves of the test images, or None and the reason; another network's proves nothing."""
    advice = f"bronet certify {folder.path}"
    if not folder.certificate().facts.exists():
        return None, f"not certified yet: {advice}"
    try:
        evidence = read_evidence(folder)
    except BronetError as error:
        return None, str(error)
    if not evidence.certificate.network.items() <= network.items():
        return None, f"its certificate is of other weights or of another recipe: {advice}"
    return evidence, ""


def compare_with_ordinary(model: nn.Module, network: ProvedNetwork, data: DataRecipe) -> Comparison | None:
    """Certify all test images of the digits, which takes a moment, and set the ordinary network beside them."""
    images, (ordinary, found) = load_images(data, "test"), read_ordinary()
    if network.image_shape != ORDINARY_SHAPE or len(images) != len(found):
        return None
    index = torch.arange(len(images))
    rows = certify_images(model, network, images, index, naive_gap_lipschitz(model, network)).rows
    return Comparison(ordinary, found, tuple(rows))


def ordinary_layers() -> nn.Sequential:
    """Return convolutions, ReLU, max-pooling and dense layers, as one would write them without a thought of proofs."""
    return nn.Sequential(
        nn.Conv2d(1, 24, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(24, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(512, 80),
        nn.ReLU(),
        nn.Linear(80, 10),
    )


def read_ordinary() -> tuple[nn.Sequential, Float[Tensor, " images"]]:
    """Return the ordinary network of this package, in float64, and where an attack found another answer."""
    tensors = load_file(str(files("bronet.web").joinpath(WEIGHTS)))
    found = tensors.pop(FOUND)
    network = ordinary_layers()
    network.load_state_dict(tensors)
    return network.double().eval().requires_grad_(False), found


def _sample_images(
    data: DataRecipe, count: int, data_dir: Path | None, classes: tuple[str, ...]
) -> tuple[ImageSet | None, str]:
    """Return the first images of the test split, else of the package's sample of it, else None and the reason."""
    try:
        return load_images(data, "test", limit=count, data_dir=data_dir, classes=classes), ""
    except BronetError as error:
        if data.name != SAMPLED:
            return None, str(error)
    return load_images(data, "sample", limit=count), ""


class Gallery:
    """All runs that are served. Networks are opened on first use: only one thread may ask for them."""

    def __init__(self, cards: Sequence[Card], *, samples: int, device: str, data_dir: Path | None) -> None:
        self.cards = tuple(cards)
        self._samples, self._device, self._data_dir = samples, device, data_dir
        self._opened: dict[int, Served] = {}

    def open(self, number: int) -> Served:
        """Return the network of a run, kept from then on."""
        if number not in self._opened:
            self._opened[number] = self._load(self.cards[number])
        return self._opened[number]

    def _load(self, card: Card) -> Served:
        """Load and prove a network, and fetch sample images of its test split where the data set is at hand."""
        data = card.folder.recipe.data
        model = load_model(card.folder, device=self._device).requires_grad_(False)
        network = prove(model, data.spec().shape)
        names = card.evidence.certificate.classes if card.evidence else ()
        images, remark = _sample_images(data, self._samples, self._data_dir, names)
        numbered = tuple(f"class {number}" for number in range(data.spec().classes))
        return Served(
            model=model,
            network=network,
            bounds=layer_bounds(network, model),
            classes=images.classes if images else names or numbered,
            samples=images.to(self._device) if images else None,
            remark=remark,
            comparison=compare_with_ordinary(model, network, data) if data.name == ORDINARY_DATA else None,
        )

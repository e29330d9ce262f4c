"""The radii of the published networks, from which the page of `bronet serve` draws their curves at the first visit.

`python -m lab.published_radii` writes them from the committed rows: one number for each test image, rounded down to a
ten-thousandth, 0 where the network is wrong. The page knows a network by the hash of its weights.
"""

from importlib.resources import files
from pathlib import Path

import numpy as np

from bronet.pretrained import find_network
from bronet.report.evidence import read_evidence
from bronet.run.certificate import file_hash
from bronet.web.served import PARTS, PUBLISHED
from lab.packed import unpacked

RESULTS = Path(__file__).parent / "results"
NETWORKS = {
    "bronet-digits/digits": "digits",
    "bronet-s-fast/cifar10": "cifar10-bronet-s-fast/seed-0",
    "lipconvnet-10-32/cifar10": "cifar10-lipconvnet-10-32/la-seed-0",
    "lipconvnet-10-32/cifar100": "cifar100-lipconvnet-10-32/la-seed-0",
}
"""The published networks, and where their rows are."""


def published() -> dict[str, np.ndarray]:
    """Return the radii of every network in parts, sorted, by the hash of its weights."""
    found = {}
    for name, folder in NETWORKS.items():
        with unpacked(RESULTS / folder) as run:
            evidence = read_evidence(run)
        network = find_network(name)
        if file_hash(network.weights) != evidence.certificate.weights_sha256:
            raise ValueError(f"the rows in {folder} are of other weights than {name}")
        radii = np.array([row.radius if row.correct else 0.0 for row in evidence.rows])
        found[evidence.certificate.weights_sha256] = np.sort(np.floor(radii * PARTS)).astype(np.uint16)
    return found


if __name__ == "__main__":
    np.savez_compressed(str(files("bronet.web").joinpath(PUBLISHED)), **published())  # type: ignore[arg-type]

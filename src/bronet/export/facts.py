"""What an exported file says of itself: all that is needed to turn its logits into a radius (docs/export.md).

The constants are proved, as in a certificate; the logits that they are applied to are a float32 program's.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from bronet.__about__ import __version__
from bronet.certificates.network import ProvedNetwork
from bronet.errors import BronetError

PIXELS = "float32 in [0, 1]; normalisation is inside the network"
MEANING = "nominal radius of predicted class t: min over j of (f_t - f_j) / gap_lipschitz[t][j]; rounding not covered"


@dataclass(frozen=True)
class ExportFacts:
    """The metadata of an exported network; `gap_lipschitz[t][j]` bounds the Lipschitz constant of f_t - f_j."""

    lipschitz: float
    gap_lipschitz: tuple[tuple[float, ...], ...]
    classes: tuple[str, ...]
    image_shape: tuple[int, ...]
    weights_sha256: str

    @classmethod
    def of(cls, network: ProvedNetwork, *, classes: Sequence[str], weights_sha256: str) -> "ExportFacts":
        """Return the facts of a proved network."""
        gaps = network.gap_lipschitz
        if len(classes) != len(gaps):
            raise BronetError(f"classes must name all {len(gaps)} outputs of the model, got {len(classes)} names")
        matrix = tuple(tuple(row) for row in gaps.tolist())
        return cls(network.lipschitz, matrix, tuple(classes), network.image_shape, weights_sha256)

    def as_text(self) -> dict[str, str]:
        """Return the entries of the file: every value is JSON."""
        values: dict[str, object] = {
            "bronet_version": __version__,
            "pixels": PIXELS,
            "meaning": MEANING,
            "lipschitz": self.lipschitz,
            "gap_lipschitz": self.gap_lipschitz,
            "classes": self.classes,
            "image_shape": self.image_shape,
            "weights_sha256": self.weights_sha256,
        }
        return {key: json.dumps(value, ensure_ascii=False) for key, value in values.items()}

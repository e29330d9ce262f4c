"""What a certificate is about, as SHA-256: weights, recipe, images, rows, and the certificate itself.

A hash says that a byte changed, not whether a claim is true: `bronet.certificates.verify` recomputes as well.
"""

import hashlib
import json
from pathlib import Path

import torch

from bronet.data import ImageSet
from bronet.errors import BronetError
from bronet.files import Json
from bronet.run.folder import RunFolder

SEAL = "seal_sha256"


def file_hash(path: Path) -> str:
    """Return the hash of a file's bytes."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise BronetError(f"cannot read {path}: {error.strerror}; train and certify this run first") from None


def network_hashes(run: RunFolder) -> dict[str, str]:
    """Return what says which network a run has: its weights, and the recipe that says what they are for."""
    return {"weights_sha256": file_hash(run.weights), "recipe_sha256": file_hash(run.recipe_file)}


def images_hash(images: ImageSet) -> str:
    """Return the hash of pixels, labels and scale, on whatever device they are."""
    digest = hashlib.sha256(f"{tuple(images.images.shape)} {images.scale}".encode())
    for tensor in (images.images, images.labels.to(torch.int64)):
        digest.update(tensor.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def sealed(facts: Json) -> Json:
    """Return the facts with a hash over all of them."""
    rest = {key: value for key, value in facts.items() if key != SEAL}
    text = json.dumps(rest, sort_keys=True, ensure_ascii=False)
    return {**rest, SEAL: hashlib.sha256(text.encode()).hexdigest()}

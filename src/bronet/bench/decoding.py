"""How fast image files are decoded for training: images per second and core, 224 pixels (ImageNet's loader).

Run as `python -m bronet.bench.decoding`. Photographs of ImageNet's usual size (500 x 375, JPEG) are made on the spot;
real ones compress differently, so the number holds within a factor, not to the percent.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from bronet.data.batches import endless_batch
from bronet.data.file_set import class_folders
from bronet.data.stream import DecodedStream, Wanted
from bronet.recipe.dataset import dataset_spec

SIZE = (500, 375)
QUALITY = 90
RESIZE = (224, 288)
FILES, CLASSES = 64, 2


def measure_decoding(*, workers: int, batch: int = 64, seconds: float = 5.0) -> dict[str, float | int]:
    """Return images per second, altogether and per core; the time to start the workers does not count.

    Without workers the core's own clock is read, so that other work on the machine does not count either.
    """
    with tempfile.TemporaryDirectory() as folder:
        _write_photographs(Path(folder))
        files = class_folders("photographs", Path(folder), expected=CLASSES)
        stream = DecodedStream(
            files,
            dataset_spec("imagenet"),
            resize=RESIZE,
            flip=True,
            seed=0,
            workers=workers,
            device=torch.device("cpu"),
        )
        steps = 1_000_000
        plan = (
            Wanted(step, endless_batch(len(files), batch, seed=0, purpose="bench", step=step)) for step in range(steps)
        )
        delivered = stream.deliver(plan)
        for _ in range(max(1, 2 * workers)):  # until every worker runs
            next(delivered)
        start, computing, images = time.perf_counter(), time.process_time(), 0
        while (spent := time.perf_counter() - start) < seconds:
            images += len(next(delivered).labels)
        computed = time.process_time() - computing
    per_core = images / computed if workers == 0 else images / spent / workers
    return {"workers": workers, "images_per_second": round(images / spent, 1), "per_core": round(per_core, 1)}


def _write_photographs(folder: Path) -> None:
    """Smooth shapes with some grain: about the size of a real file, 110 kB."""
    draw = np.random.default_rng(0)
    for number in range(FILES):
        coarse = Image.fromarray(draw.integers(0, 256, (24, 32, 3), dtype=np.uint8))
        smooth = np.asarray(coarse.resize(SIZE, Image.Resampling.BICUBIC), dtype=np.int16)
        grain = draw.integers(-12, 13, smooth.shape, dtype=np.int16)
        place = folder / str(number % CLASSES)
        place.mkdir(exist_ok=True)
        image = Image.fromarray(np.clip(smooth + grain, 0, 255).astype(np.uint8))
        image.save(place / f"{number}.jpeg", quality=QUALITY)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Measure the decoding of 224-pixel training images.")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=5.0)
    options = parser.parse_args()
    print(json.dumps(measure_decoding(workers=options.workers, batch=options.batch, seconds=options.seconds)))

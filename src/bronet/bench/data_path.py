"""Does the data path keep up? Training steps with real, augmented batches against steps with the same tensors again.

Run as `python -m bronet.bench.data_path --recipe cifar10/bronet-m --data-dir DIR --device cuda`. The two kinds of
steps take turns within one run; the ratio of their speeds is what the data path leaves of the network's speed. The
utilisation is nvidia-smi's, sampled during the real steps; without nvidia-smi there is none.
"""

import argparse
import json
import statistics
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from bronet.data import Batch, prepared_ahead
from bronet.models import build_model
from bronet.recipe import Recipe, find_recipe, override
from bronet.train.optimizer import optimizer_for
from bronet.train.processes import Processes
from bronet.train.step import TrainStep
from bronet.train.tally import Tally
from bronet.train.teacher import new_teacher
from bronet.train.training_set import open_training

ROUNDS = 5
WARM_UP = 10
SAMPLE_SECONDS = 0.2


def measure_data_path(
    recipe: Recipe, *, device: torch.device, data_dir: Path | None, steps: int, workers: int
) -> dict[str, object]:
    """Return images per second of both kinds of steps (medians over rounds), and their ratio."""
    batches, _ = open_training(recipe, device=device, processes=Processes(), data_dir=data_dir, workers=workers)
    model = build_model(recipe.model, recipe.data.spec(), device=device).train()
    optimizer = optimizer_for(recipe.optim, model)
    take = TrainStep(recipe, model, optimizer, Tally(eps=0.1, device=device), teacher=new_teacher(recipe, device))
    stream = prepared_ahead(batches.between(0, ROUNDS * steps + 1), device)
    fixed = next(stream)
    _run(take, _again(fixed, WARM_UP), device)
    speeds: dict[str, list[float]] = {"real": [], "fixed": []}
    samples: list[int] = []
    for _ in range(ROUNDS):
        images = steps * recipe.train.batch_size
        speeds["fixed"].append(images / _run(take, _again(fixed, steps), device))
        with _Utilisation(device, samples):
            speeds["real"].append(images / _run(take, (next(stream) for _ in range(steps)), device))
    real, again = statistics.median(speeds["real"]), statistics.median(speeds["fixed"])
    return {
        "recipe": recipe.name,
        "precision": recipe.train.precision,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU",
        "images_per_second_real": round(real, 1),
        "images_per_second_fixed": round(again, 1),
        "ratio": round(real / again, 4),
        "gpu_utilisation_percent": round(statistics.mean(samples), 1) if samples else None,
    }


def _again(batch: Batch, times: int) -> Iterator[Batch]:
    return (batch for _ in range(times))


def _run(take: TrainStep, batches: Iterator[Batch], device: torch.device) -> float:
    """Take a step on every batch and return the seconds, the device's included."""
    start = time.perf_counter()
    for batch in batches:
        take(batch.pixels, batch.labels, number=0, learning_rate=1e-4, emma_eps=0.1)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


class _Utilisation:
    """Samples the GPU's utilisation in a thread while inside."""

    def __init__(self, device: torch.device, samples: list[int]) -> None:
        self.wanted, self.samples = device.type == "cuda", samples
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> None:
        if self.wanted:
            self.thread.start()

    def __exit__(self, *error: object) -> None:
        self.over.set()
        if self.wanted:
            self.thread.join()

    def _sample(self) -> None:
        query = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]
        while not self.over.wait(SAMPLE_SECONDS):
            try:
                answer = subprocess.run(query, capture_output=True, text=True, check=True, timeout=5).stdout
                self.samples.append(int(answer.split()[0]))
            except (OSError, subprocess.SubprocessError, ValueError, IndexError):  # no such program, or no number
                return


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Measure what the data path leaves of the network's speed.")
    parser.add_argument("--recipe", default="cifar10/bronet-m")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--workers", type=int, default=0)
    options = parser.parse_args()
    result = measure_data_path(
        override(find_recipe(options.recipe), options.set),
        device=torch.device(options.device),
        data_dir=options.data_dir,
        steps=options.steps,
        workers=options.workers,
    )
    print(json.dumps(result))

"""A folder as `python -m lab publish` writes it, with rows whose statistics are known beforehand."""

import json
from dataclasses import replace
from pathlib import Path

from bronet.files import sealed
from bronet.recipe import Recipe, to_text
from bronet.records import write_rows
from bronet.run.certificate import Rounding, Row
from certificates import CERTIFICATE, write_certificate

BUDGETS = (36 / 255, 72 / 255, 108 / 255)


def publish_rows(
    folder: Path, recipe: Recipe, shares: tuple[float, float, float, float], *, images: int = 10_000, **record: object
) -> Path:
    """Write a run whose clean and certified accuracies are exactly these shares of the images."""
    counts = [round(share * images) for share in shares]
    radii = [0.1, 0.2, 0.3, 0.5]
    rows = []
    for index in range(images):
        passed = sum(index < count for count in counts)
        radius = radii[passed - 1] if passed else 0.05
        rows.append(
            Row(
                index=index,
                label=0,
                prediction=0 if passed else 1,
                correct=bool(passed),
                margin=2 * radius,
                radius=radius,
                naive_radius=radius,
            )
        )
    folder.mkdir(parents=True)
    write_rows(Row, folder / "certificate.csv", rows)
    (folder / "recipe.yaml").write_text(to_text(recipe))
    certificate = replace(
        CERTIFICATE,
        data=recipe.data.name,
        images=images,
        pixels=3072,
        eps=("36/255", "72/255", "108/255"),
        lipschitz=3.99,
        layers=(),
        rounding=Rounding(worst=1e-11, median=1e-11),
        command="bronet certify run",
    )
    write_certificate(folder, certificate)
    (folder / "record.json").write_text(json.dumps(sealed({"device": "a GPU", "seconds": 600.0, **record})))
    return folder

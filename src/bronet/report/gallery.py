"""Some images of a run to look at: the easiest, the hardest, the narrow misses, each with what is known of it.

The rows say which; the images are read where the data set is at hand. A page without images says why.
"""

import base64
import io
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image

from bronet.data import FileSet, open_images
from bronet.errors import BronetError
from bronet.recipe.schema import parse_budget
from bronet.report.evidence import Evidence
from bronet.run.certificate import Row
from bronet.run.folder import RunFolder
from bronet.wording import number_text

SHOWN = 8
"""Images of one group."""
DRAWABLE_CHANNELS = (1, 3)
MAX_SIDE = 96
"""Pixels of a picture's side at most."""


class Group(NamedTuple):
    """Some rows that have something in common."""

    title: str
    rows: Sequence[Row]


def choose_groups(run: Evidence) -> list[Group]:
    """Return the groups that have any rows; the misses are those of the smallest radius to count at."""
    ordered = sorted(run.rows, key=lambda row: row.radius)
    right, wrong = [row for row in ordered if row.correct], [row for row in ordered if not row.correct]
    eps = min(run.eps, key=parse_budget, default="0")
    missed = [row for row in right if row.radius <= parse_budget(eps)]
    groups = [
        Group("Largest radii", right[::-1][:SHOWN]),
        Group("Smallest radii", right[:SHOWN]),
        Group(f"Closest misses: right, but not proved at ε = {eps}", missed[::-1][:SHOWN]),
        Group("Mistakes with the largest radii: no small change makes them right", wrong[::-1][:SHOWN]),
    ]
    return [group for group in groups if group.rows]


def read_pictures(run: Evidence, rows: Sequence[Row], data_dir: Path | None) -> dict[int, str]:
    """Return the images of rows as data addresses of PNG pictures; raise `BronetError` where they are not at hand."""
    certificate, data = run.certificate, RunFolder(run.folder).recipe.data
    if data.spec().channels not in DRAWABLE_CHANNELS:
        raise BronetError(f"images must have 1 or 3 channels to be drawn, got {data.spec().channels}")
    indices = sorted({row.index for row in rows})
    found = open_images(data, certificate.split, data_dir=data_dir, classes=certificate.classes)
    if indices[-1] >= len(found):
        raise BronetError(f"{data.name} must have image {indices[-1]}, got {len(found)} images")
    chosen = found.subset(torch.tensor(indices))
    images = chosen.decoded(data.spec(), resized=bool(data.resize)) if isinstance(chosen, FileSet) else chosen
    labels = {row.index: row.label for row in rows}
    if images.labels.tolist() != [labels[index] for index in indices]:
        raise BronetError(f"{data.name} must be the images that were certified, but labels differ")
    return {index: _address(image.numpy(), images.scale) for index, image in zip(indices, images.images, strict=True)}


def _address(pixels: np.ndarray, scale: int) -> str:
    planes = np.rint(pixels.transpose(1, 2, 0) * (255 / scale)).astype(np.uint8)
    image = Image.fromarray(planes[:, :, 0] if planes.shape[2] == 1 else planes)
    image.thumbnail((MAX_SIDE, MAX_SIDE))
    return png_address(image)


def png_address(image: Image.Image) -> str:
    """Return an image as the data address of a PNG picture."""
    buffer = io.BytesIO()
    image.save(buffer, format="PNG")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def gallery_html(run: Evidence, data_dir: Path | None) -> str:
    """Return all groups as HTML, with images where they are at hand."""
    groups = choose_groups(run)
    pictures, remark = _pictures_or_remark(run, [row for group in groups for row in group.rows], data_dir)
    return remark + "".join(
        f'<h3>{escape(group.title)}</h3><ul class="gallery">'
        + "".join(_card(run, row, pictures) for row in group.rows)
        + "</ul>"
        for group in groups
    )


def _pictures_or_remark(run: Evidence, rows: Sequence[Row], data_dir: Path | None) -> tuple[dict[int, str], str]:
    try:
        return read_pictures(run, rows, data_dir), ""
    except BronetError as error:
        return {}, f'<p class="note">No images here: {escape(str(error))}.</p>'


def widest_html(runs: Sequence[Evidence], data_dir: Path | None) -> str:
    """Return the images whose proved radii differ most between runs on the same images; a wrong class counts as 0."""
    radii = np.array([[row.radius if row.correct else 0.0 for row in run.rows] for run in runs])
    finite = np.where(np.isfinite(radii), radii, 0.0)
    widest = np.argsort(finite.min(axis=0) - finite.max(axis=0), kind="stable")[:SHOWN].tolist()
    pictures, remark = _pictures_or_remark(runs[0], [runs[0].rows[number] for number in widest], data_dir)
    cards = []
    for number in widest:
        row = runs[0].rows[number]
        lines = [f"<strong>{escape(runs[0].class_name(row.label))}</strong>"]
        lines += [f"{escape(run.name)}: {number_text(own[number])}" for run, own in zip(runs, radii, strict=True)]
        cards.append(_item(row, pictures, lines))
    return f'<h3>Radii that differ most (0: wrong)</h3>{remark}<ul class="gallery wide">{"".join(cards)}</ul>'


def _card(run: Evidence, row: Row, pictures: Mapping[int, str]) -> str:
    lines = [f"<strong>{escape(run.class_name(row.prediction))}</strong>"]
    if not row.correct:
        lines.append(f"is {escape(run.class_name(row.label))}")
    lines.append(f"r = {number_text(row.radius)}")
    if (attack := run.closest.get(row.index)) is not None:
        lines.append(f"{escape(run.class_name(attack.found))} at {number_text(attack.l2)}")
    return _item(row, pictures, lines)


def _item(row: Row, pictures: Mapping[int, str], lines: Sequence[str]) -> str:
    name, picture = escape(row.file or f"image {row.index}"), pictures.get(row.index)
    shown = f'<img src="{picture}" alt="{name}" title="{name}">' if picture else f"<i>{name}</i>"
    return f"<li>{shown}{'<br>'.join(lines)}</li>"

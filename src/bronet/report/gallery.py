"""Some images of a run to look at: the easiest, the hardest, the narrow misses, each with what is known of it.

The rows say which; the images are read where the data set is at hand. A page without images says why.
"""

import base64
import io
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

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
WHITE = 255


def choose_groups(run: Evidence) -> dict[str, list[Row]]:
    """Return groups of rows by their title; the misses are those of the smallest radius to count at."""
    ordered = sorted(run.rows, key=lambda row: row.radius)
    right, wrong = [row for row in ordered if row.correct], [row for row in ordered if not row.correct]
    eps = min(run.eps, key=parse_budget, default="0")
    missed = [row for row in right if row.radius <= parse_budget(eps)]
    groups = {
        "Largest radii": right[::-1],
        "Smallest radii": right,
        f"Closest misses: right, but not proved at ε = {eps}": missed[::-1],
        "Mistakes with the largest radii: no small change makes them right": wrong[::-1],
    }
    return {title: rows[:SHOWN] for title, rows in groups.items() if rows}


def read_pictures(run: Evidence, rows: Sequence[Row], data_dir: Path | None) -> dict[int, str]:
    """Return the images of rows as data addresses of PNG pictures; raise `BronetError` where they are not at hand."""
    certificate, data = run.certificate, RunFolder(run.folder).recipe.data
    if data.spec().channels not in DRAWABLE_CHANNELS:
        raise BronetError(f"images must have 1 or 3 channels to be drawn, got {data.spec().channels}")
    labels = {row.index: row.label for row in sorted(rows, key=lambda row: row.index)}
    found = open_images(data, certificate.split, data_dir=data_dir, classes=certificate.classes)
    if max(labels) >= len(found):
        raise BronetError(f"{data.name} must have image {max(labels)}, got {len(found)} images")
    chosen = found.subset(torch.tensor(list(labels)))
    images = chosen.decoded(data.spec(), resized=bool(data.resize)) if isinstance(chosen, FileSet) else chosen
    if images.labels.tolist() != list(labels.values()):
        raise BronetError(f"{data.name} must be the images that were certified, but labels differ")
    pictures = [drawn(image, images.scale) for image in images.images]
    for picture in pictures:
        picture.thumbnail((MAX_SIDE, MAX_SIDE))
    return dict(zip(labels, map(png_address, pictures), strict=True))


def drawn(image: Tensor, scale: float = 1.0) -> Image.Image:
    """Return an image (channels, height, width), whose values lie in 0 .. scale, with eight bits per channel."""
    bytes_of_it = (image.double() * (WHITE / scale)).round().clamp(0, WHITE).to(torch.uint8)
    planes = np.ascontiguousarray(bytes_of_it.permute(1, 2, 0).cpu().numpy())
    return Image.fromarray(planes[:, :, 0] if planes.shape[2] == 1 else planes)


def png_address(image: Image.Image) -> str:
    """Return a picture as the data address of a PNG file."""
    buffer = io.BytesIO()
    image.save(buffer, format="PNG")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def gallery_html(run: Evidence, data_dir: Path | None) -> str:
    """Return all groups as HTML, with images where they are at hand."""
    groups = choose_groups(run)
    pictures, remark = _pictures_or_remark(run, [row for rows in groups.values() for row in rows], data_dir)
    parts = [remark]
    for title, rows in groups.items():
        cards = (_card(row, pictures, _known_of(run, row)) for row in rows)
        parts.append(f'<h3>{escape(title)}</h3><ul class="gallery">{"".join(cards)}</ul>')
    return "".join(parts)


def widest_html(runs: Sequence[Evidence], data_dir: Path | None) -> str:
    """Return the images whose proved radii differ most between runs on the same images; a wrong class counts as 0."""
    radii = np.array([[row.radius if row.correct else 0.0 for row in run.rows] for run in runs])
    finite = np.where(np.isfinite(radii), radii, 0.0)
    widest = np.argsort(finite.min(axis=0) - finite.max(axis=0), kind="stable")[:SHOWN].tolist()
    rows = {number: runs[0].rows[number] for number in widest}
    pictures, remark = _pictures_or_remark(runs[0], list(rows.values()), data_dir)
    cards = []
    for number, row in rows.items():
        own = [f"{run.name}: {number_text(radius)}" for run, radius in zip(runs, radii[:, number], strict=True)]
        cards.append(_card(row, pictures, [runs[0].class_name(row.label), *own]))
    return f'<h3>Radii that differ most (0: wrong)</h3>{remark}<ul class="gallery wide">{"".join(cards)}</ul>'


def _pictures_or_remark(run: Evidence, rows: Sequence[Row], data_dir: Path | None) -> tuple[dict[int, str], str]:
    try:
        return read_pictures(run, rows, data_dir), ""
    except BronetError as error:
        return {}, f'<p class="note">No images here: {escape(str(error))}.</p>'


def _known_of(run: Evidence, row: Row) -> list[str]:
    """Return the predicted class, the true one if it is another, the radius, and the closest attack."""
    lines = [run.class_name(row.prediction)]
    if not row.correct:
        lines.append(f"is {run.class_name(row.label)}")
    lines.append(f"r = {number_text(row.radius)}")
    if (attack := run.closest.get(row.index)) is not None:
        lines.append(f"{run.class_name(attack.found)} at {number_text(attack.l2)}")
    return lines


def _card(row: Row, pictures: Mapping[int, str], lines: Sequence[str]) -> str:
    """Return an image, or its name where it is not at hand, and lines about it, of which the first stands out."""
    name, picture = escape(row.file or f"image {row.index}"), pictures.get(row.index)
    shown = f'<img src="{picture}" alt="{name}" title="{name}">' if picture else f"<i>{name}</i>"
    first, *others = map(escape, lines)
    return f"<li>{shown}{'<br>'.join([f'<strong>{first}</strong>', *others])}</li>"

"""Small image files in the true layouts of the large data sets, made on the spot."""

import io
from pathlib import Path

import numpy as np
from PIL import Image


def picture(seed: int, width: int = 64, height: int = 64) -> Image.Image:
    """A smooth random picture: compresses like a photograph, and decodes to nearly the same pixels."""
    coarse = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


def encoded(seed: int, kind: str = "PNG", width: int = 64, height: int = 64) -> bytes:
    buffer = io.BytesIO()
    picture(seed, width, height).save(buffer, kind)
    return buffer.getvalue()


def pixels(seed: int, width: int = 64, height: int = 64) -> np.ndarray:
    return np.asarray(picture(seed, width, height)).transpose(2, 0, 1)


def class_folders(
    root: Path, classes: list[str], count: int, kind: str = "PNG", size: tuple[int, int] = (64, 64)
) -> None:
    """Write `count` images into a folder for each class; image i of class c has the seed 100 c + i."""
    for number, name in enumerate(classes):
        folder = root / name
        folder.mkdir(parents=True)
        for index in range(count):
            content = encoded(100 * number + index, kind, *size)
            (folder / f"{name}_{index}.{'JPEG' if kind == 'JPEG' else 'png'}").write_bytes(content)


def tiny_imagenet(folder: Path, *, classes: int = 200, train: int = 1, test: int = 1) -> list[str]:
    """Write the official layout with few images; return the class names in the order of wnids.txt."""
    names = [f"n{number:08d}" for number in reversed(range(classes))]  # not sorted, like the official file
    for number, name in enumerate(names):
        images = folder / "train" / name / "images"
        images.mkdir(parents=True)
        (folder / "train" / name / f"{name}_boxes.txt").write_text("boxes\n")
        for index in range(train):
            (images / f"{name}_{index}.JPEG").write_bytes(encoded(number, "JPEG"))
    (folder / "wnids.txt").write_text("\n".join(names) + "\n")
    held = folder / "val" / "images"
    held.mkdir(parents=True)
    lines = []
    for index in range(test * classes):
        (held / f"val_{index}.JPEG").write_bytes(encoded(index % classes, "JPEG"))
        lines.append(f"val_{index}.JPEG\t{names[index % classes]}\t0\t0\t62\t62\n")
    (folder / "val" / "val_annotations.txt").write_text("".join(lines))
    return names

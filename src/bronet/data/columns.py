"""Images in columns: local parquet files, and .npz files of generated images (Tables 2 and 3).

Parquet has the layout of the Hugging Face hub: a column of images, each a struct with its encoded `bytes` or the bytes
themselves, and one of labels. This needs pyarrow (the extra `data`). A set that does not fit in memory (ImageNet) is
unpacked into class folders first, because parquet has no cheap random access.

An .npz file holds arrays `image` (n, h, w, c) of bytes and `label` (n,), as in EDM's sets for CIFAR. Python objects,
which could run code when read, are refused.
"""

import json
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from bronet.data.archive import unpacking
from bronet.data.decode import decode_centre, decode_whole
from bronet.data.image_set import ImageSet
from bronet.errors import BronetError
from bronet.recipe.schema import DatasetSpec

if TYPE_CHECKING:
    import pyarrow.parquet

IMAGE_NAMES = ("image", "img", "images", "pixel_values")
LABEL_NAMES = ("label", "fine_label", "labels", "class")
"""What columns, arrays and entries of a data set's items are called; the first that is there counts."""
ROWS_AT_ONCE = 256
CHUNK_IMAGES = 4096
CLASS_DIGITS = 4


def image_and_label(names: Iterable[str]) -> tuple[str, str]:
    """Return which of the names are those of images and of labels; empty where there is none."""
    known = set(names)
    image, label = (next((name for name in of_kind if name in known), "") for of_kind in (IMAGE_NAMES, LABEL_NAMES))
    return image, label


def parquet_files(root: Path, split: str) -> list[Path]:
    """Return the parquet files of a split: those whose name begins with it, in `root` or in `root`/data."""
    return sorted(path for folder in (root, root / "data") for path in folder.glob(f"{split}*.parquet"))


def load_parquet(files: list[Path], name: str, spec: DatasetSpec, *, resized: bool) -> ImageSet:
    """Return all images of the files, decoded; `resized` has the meaning of `FileSet.decoded`."""
    decode, images, labels = decode_centre if resized else decode_whole, [], list[int]()
    for content, label, place in encoded_images(files):
        try:
            images.append(decode(content, spec))
        except BronetError as error:
            raise BronetError(f"{place}: {error}") from None
        labels.append(label)
    if not images:
        raise BronetError(f"parquet files of {name} must hold images, got none in {len(files)} files")
    classes = class_names_in(files[0]) or tuple(str(number) for number in range(spec.classes))
    if len(classes) != spec.classes:
        raise BronetError(f"classes of {name} must be {spec.classes}, got {len(classes)} in {files[0]}")
    return ImageSet(name, torch.stack(images), torch.tensor(labels), classes, spec.scale)


def encoded_images(files: list[Path]) -> Iterator[tuple[bytes, int, str]]:
    """Yield encoded image, label, and the place to name in messages, in order, a few hundred in memory at a time.

    Damage may be found only when its part of a file is read.
    """
    for path in files:
        with _opened(path) as table:
            names, row = table.schema_arrow.names, 0
            columns = image_and_label(names)
            if not all(columns):
                raise BronetError(f"{path} must have columns image and label, got {', '.join(names)}")
            for batch in table.iter_batches(batch_size=ROWS_AT_ONCE, columns=list(columns)):
                for content, label in zip(*(batch.column(name).to_pylist() for name in columns), strict=True):
                    row += 1
                    inner = content.get("bytes") if isinstance(content, dict) else content
                    if not isinstance(inner, bytes):
                        raise BronetError(f"images in {path} must hold their encoded bytes, got {type(inner).__name__}")
                    if not isinstance(label, int) or label < 0:
                        raise BronetError(f"labels in {path} must be whole numbers from 0, got {label!r}")
                    yield inner, label, f"{path}, row {row}"
            if row != (told := table.metadata.num_rows):
                raise BronetError(f"{path} must hold the {told} rows it names, got {row}; get it again")


def class_names_in(path: Path) -> tuple[str, ...]:
    """Return the class names in the hub's metadata; none if there are none."""
    with _opened(path) as table:
        text = (table.schema_arrow.metadata or {}).get(b"huggingface", b"{}")
    try:
        features: Any = json.loads(text).get("info", {}).get("features", {})
        _, label = image_and_label(features)
        return tuple(str(name) for name in features[label]["names"]) if label else ()
    except (ValueError, AttributeError, KeyError, TypeError):
        return ()


def unpack_parquet(files: list[Path], folder: Path) -> int:
    """Write the encoded images into numbered class folders below `folder`, which must not exist; return how many.

    The folder appears when it is complete; a failed attempt leaves nothing.
    """
    if folder.exists():
        raise BronetError(f"{folder} must not exist yet; delete it or choose another")
    count = 0
    with unpacking(folder) as unpacked:
        for count, (content, label, _) in enumerate(encoded_images(files), start=1):
            place = unpacked / f"{label:0{CLASS_DIGITS}d}"
            place.mkdir(parents=True, exist_ok=True)
            suffix = "png" if content.startswith(b"\x89PNG") else "jpeg"
            (place / f"{count:08d}.{suffix}").write_bytes(content)
        if not count:
            raise BronetError(f"parquet files must hold images, got none in {len(files)} files")
    return count


@contextmanager
def _opened(path: Path) -> Iterator["pyarrow.parquet.ParquetFile"]:
    """Yield the table of a file; damage that is found inside is told with the file's name."""
    try:
        import pyarrow.parquet
    except ImportError:
        raise BronetError("parquet files need pyarrow; install it with: pip install 'bronet[data]'") from None
    try:
        yield pyarrow.parquet.ParquetFile(path, page_checksum_verification=True)  # where it has checksums
    except BronetError:
        raise
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise BronetError(f"cannot read {path} ({' '.join(str(error).split())}); get it again") from None


def load_npz(path: Path, spec: DatasetSpec, classes: tuple[str, ...]) -> ImageSet:
    """Return the images and labels of an .npz file; shapes, types and labels are checked.

    Images are put into the order of the network in place, so that millions of them are never in memory twice.
    """
    if not path.is_file():
        raise BronetError(f"generated images must be in {path}, but there is no such file; get or make them first")
    try:
        if not zipfile.is_zipfile(path):
            raise zipfile.BadZipFile("it is no .npz file")
        with np.load(path, allow_pickle=False) as arrays:
            image, label = image_and_label(arrays)
            if not image or not label:
                raise BronetError(f"{path} must hold arrays named 'image' and 'label', got {', '.join(arrays)}")
            pixels, numbers = np.asarray(arrays[image]), np.asarray(arrays[label])
    except BronetError:
        raise
    except (ValueError, TypeError, OverflowError, MemoryError) as error:
        raise BronetError(f"arrays in {path} must be plain .npy arrays ({error})") from None
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError) as error:
        raise BronetError(f"cannot read {path} ({error}): it is damaged or cut short, get it again") from None
    wanted = (spec.height, spec.width, spec.channels)
    if pixels.shape[1:] != wanted or pixels.dtype != np.uint8:
        got = f"{pixels.dtype} of shape {pixels.shape}"
        raise BronetError(f"images in {path} must be uint8 of shape (n, {wanted}), got {got}")
    if numbers.shape != pixels.shape[:1] or numbers.dtype.kind not in "iu":
        got = f"{numbers.dtype} of shape {numbers.shape}"
        raise BronetError(f"labels in {path} must be {len(pixels)} whole numbers, got {got}")
    stored = torch.from_numpy(np.ascontiguousarray(pixels))
    images = stored.view(-1, *spec.shape)  # the same memory, in which every image keeps its place
    for part, moved in zip(stored.split(CHUNK_IMAGES), images.split(CHUNK_IMAGES), strict=True):
        moved.copy_(part.permute(0, 3, 1, 2).clone())
    return ImageSet(path.stem, images, torch.from_numpy(numbers.astype(np.int64)), classes, spec.scale)

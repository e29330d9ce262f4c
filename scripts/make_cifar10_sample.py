"""Write the embedded sample of CIFAR-10 anew: the first 50 test images of each class, in test order.

    python scripts/make_cifar10_sample.py --data-dir datasets --out src/bronet/data

The pixels are those of the official archive; the same library versions give the same bytes of the two files.
"""

import argparse
import io
from pathlib import Path

from PIL import Image

from bronet.data import load_dataset
from bronet.data.load import IMAGES_FILE, ROWS_FILE
from bronet.files import replace_bytes, replace_text

PER_CLASS = 50
HEADER = "test_index,label"


def main() -> None:
    """Read the arguments and write both files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", type=Path, default=None, help="folder of the data sets")
    parser.add_argument("--out", type=Path, default=Path("src/bronet/data"), help="folder to write to")
    arguments = parser.parse_args()
    test = load_dataset("cifar10", "test", data_dir=arguments.data_dir)
    firsts = [(test.labels == label).nonzero()[:PER_CLASS, 0] for label in range(len(test.classes))]
    chosen = sorted(int(index) for first in firsts for index in first)
    strip = test.images[chosen].permute(0, 2, 3, 1).reshape(-1, test.images.shape[3], 3)
    picture = io.BytesIO()
    Image.fromarray(strip.numpy()).save(picture, format="PNG", optimize=True)
    lines = [HEADER, *(f"{index},{int(test.labels[index])}" for index in chosen)]
    replace_bytes(arguments.out / IMAGES_FILE, picture.getvalue())
    replace_text(arguments.out / ROWS_FILE, "\n".join(lines) + "\n")
    print(f"wrote {len(chosen)} images into {arguments.out}")


if __name__ == "__main__":
    main()

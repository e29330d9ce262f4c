"""Write a tiny data set of one's own: data/shapes/{train,test}/{circle,cross,square}/*.png, 16 x 16 pixels."""

import random
from pathlib import Path

from PIL import Image, ImageDraw

SIDE, SIZE = 16, 11
ROOT = Path("data") / "shapes"


def drawn(name: str, draw: random.Random) -> Image.Image:
    """Return one picture of a shape, at a random place and in random colours."""
    image = Image.new("RGB", (SIDE, SIDE), draw.choice(["black", "navy", "darkgreen"]))
    pen, colour = ImageDraw.Draw(image), draw.choice(["white", "yellow", "orange"])
    x, y = draw.randint(0, SIDE - SIZE - 2), draw.randint(0, SIDE - SIZE - 2)
    if name == "circle":
        pen.ellipse((x, y, x + SIZE, y + SIZE), outline=colour, width=2)
    elif name == "square":
        pen.rectangle((x, y, x + SIZE, y + SIZE), outline=colour, width=2)
    else:
        pen.line((x, y, x + SIZE, y + SIZE), fill=colour, width=2)
        pen.line((x + SIZE, y, x, y + SIZE), fill=colour, width=2)
    return image


if __name__ == "__main__":
    random_numbers = random.Random(0)
    for split, count in (("train", 80), ("test", 20)):
        for name in ("circle", "cross", "square"):
            folder = ROOT / split / name
            folder.mkdir(parents=True, exist_ok=True)
            for number in range(count):
                drawn(name, random_numbers).save(folder / f"{number:03d}.png")

"""Draw every figure of the documentation into this folder: python docs/figures/draw.py."""

from pathlib import Path

from canvas import write
from flow import draw_flow
from idea import draw_idea
from networks import draw_networks
from shapes import draw_shapes

HERE = Path(__file__).parent


def drawings() -> dict[str, str]:
    """Return every drawing, by name, as SVG text."""
    return {**draw_idea(), "bro-conv": draw_flow(), "shapes": draw_shapes(), **draw_networks()}


if __name__ == "__main__":
    for name, text in drawings().items():
        write(text, HERE / f"{name}.svg")
        print(f"drawn: {name}.svg, {len(text):,} bytes")

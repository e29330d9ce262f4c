"""Every drawing of the documentation, by name, as SVG text."""

from lab.figures.flow import draw_flow
from lab.figures.idea import draw_idea
from lab.figures.networks import draw_networks
from lab.figures.shapes import draw_shapes


def drawings() -> dict[str, str]:
    """Return every drawing."""
    return {**draw_idea(), "bro-conv": draw_flow(), "shapes": draw_shapes(), **draw_networks()}

"""Every drawing of the documentation, by name, as SVG text."""

from lab.figures.convolution import draw_flow, draw_shapes
from lab.figures.idea import draw_idea
from lab.figures.networks import draw_networks
from lab.figures.rooms import draw_rooms


def drawings() -> dict[str, str]:
    """Return every drawing."""
    return {**draw_idea(), "bro-conv": draw_flow(), "shapes": draw_shapes(), "rooms": draw_rooms(), **draw_networks()}

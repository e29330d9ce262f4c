"""The way of the data through the library: files between commands, and the rooms that each command walks through."""

from collections.abc import Sequence
from typing import NamedTuple

from lab.figures.canvas import SOFT, Sheet, svg


class Way(NamedTuple):
    """A command, the rooms it walks through, and the files behind it."""

    command: str
    rooms: Sequence[str]
    files: str


WAYS = (
    Way("bronet train", ("recipe", "data", "models", "training"), "recipe.yaml, model.safetensors"),
    Way("bronet certify", ("run", "graph", "proof", "certificates"), "certificate.csv, certificate.json"),
    Way("bronet attack", ("run", "graph", "attack"), "attack-*.csv, attack-*.json"),
    Way("bronet verify", ("run", "graph", "proof", "certificates"), "every claim proved again"),
    Way("bronet report", ("run", "report"), "tables, curve, report.html"),
)
LEFT, STEP, HIGH = 30.0, 15.0, 11.0
HUES = {
    "training": "orange",
    "recipe": "orange",
    "data": "orange",
    "models": "orange",
    "run": "violet",
    "report": "green",
}


def draw_rooms() -> str:
    """Return the picture of the way of the data."""
    height = HIGH * len(WAYS) + 16
    sheet = Sheet(height)
    sheet.words(2, height - 4, "command", anchor="left", colour=SOFT)
    sheet.words(LEFT - 6, height - 4, "rooms that it walks through, one call each", anchor="left", colour=SOFT)
    for number, way in enumerate(WAYS):
        y = height - 12 - HIGH * number
        sheet.words(2, y, way.command, anchor="left", bold=True)
        for place, room in enumerate(way.rooms):
            x = LEFT + STEP * place
            sheet.box(x, y, 11.5, 5, room, hue=HUES.get(room, "blue"), size=8)
            if place:
                sheet.arrow((x - STEP + 6.2, y), (x - 6.2, y))
        end = LEFT + STEP * (len(way.rooms) - 1) + 6.2
        sheet.words(end + 1, y - 4.4, way.files, anchor="right", size=7.5, colour=SOFT)
    sheet.words(50, 3.5, "Below all of them: layers, losses, ortho, radius, kernels.", colour=SOFT)
    return svg(sheet.figure, "rooms")

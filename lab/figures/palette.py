"""The few colours of the drawings, by name. On the site each follows the theme (docs/site.css has the dark ones)."""

COLOURS = {
    "paper": "#ffffff",
    "ink": "#1c2430",
    "soft": "#667085",
    "line": "#d9dee7",
    "panel": "#f3f5f8",
    "blue": "#2458c7",
    "blue-fill": "#dbe5fb",
    "orange": "#c2410c",
    "orange-fill": "#fbe3d6",
    "green": "#0f7b5f",
    "green-fill": "#d5efe6",
    "violet": "#7a3fb5",
    "violet-fill": "#eadff6",
}
PAPER, INK, SOFT, LINE, PANEL = (COLOURS[name] for name in ("paper", "ink", "soft", "line", "panel"))
HUES = ("blue", "orange", "green", "violet")


def stroke(hue: str) -> str:
    """Return the strong shade of a hue."""
    return COLOURS[hue]


def fill(hue: str) -> str:
    """Return the pale shade of a hue."""
    return COLOURS[f"{hue}-fill"]

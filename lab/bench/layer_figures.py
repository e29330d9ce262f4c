"""Figures 2, 5 and 6 and the growth table, drawn from measured rows and nothing else."""

from collections.abc import Callable, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lab.bench.layers import LayerRow

_BYTES_PER_GIB = 2**30
_COLORS = (
    *("#2458c7", "#c2410c", "#0f7b5f", "#7a3fb5", "#a3174f", "#8a6d00", "#117a9c"),
    *("#5b6472", "#b0562f", "#3c7d2b", "#6a4cc0", "#d0477f", "#222222"),
)
_MARKERS = "osD^v<>Pph*X."
_LEGEND_COLUMNS = 7

Value = Callable[[LayerRow], float | None]


def milliseconds(row: LayerRow) -> float | None:
    """Return the time of a training step."""
    return None if row.train_seconds is None else 1000 * row.train_seconds


def gibibytes(row: LayerRow) -> float | None:
    """Return the memory of a training step."""
    return None if row.memory_bytes is None else row.memory_bytes / _BYTES_PER_GIB


def figure_2(rows: Sequence[LayerRow]) -> Figure:
    """Return time and memory of a training step over the initial width, at the first size and kernel."""
    size, kernel = rows[0].size, rows[0].kernel
    chosen = [row for row in rows if (row.size, row.kernel) == (size, kernel)]
    figure = Figure(figsize=(9.0, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    _lines(left, chosen, lambda row: row.width, milliseconds)
    _lines(right, chosen, lambda row: row.width, gibibytes)
    _label(left, "initial width", "training step, ms")
    _label(right, "initial width", "memory, GiB")
    _legend(figure, left)
    return figure


def figure_5(rows: Sequence[LayerRow]) -> Figure:
    """Return time and memory over input size, width and kernel, the other two held at their first values."""
    base = rows[0]
    figure = Figure(figsize=(11.0, 6.4), layout="constrained")
    grid = figure.subplots(2, 3)
    factors: list[tuple[str, Callable[[LayerRow], int]]] = [
        ("input size s", lambda row: row.size),
        ("initial width", lambda row: row.width),
        ("kernel k", lambda row: row.kernel),
    ]
    for column, (label, factor) in enumerate(factors):
        others = [other for _, other in factors if other is not factor]
        chosen = [row for row in rows if all(other(row) == other(base) for other in others)]
        _lines(grid[0, column], chosen, factor, milliseconds)
        _lines(grid[1, column], chosen, factor, gibibytes)
        _label(grid[0, column], label, "training step, ms")
        _label(grid[1, column], label, "memory, GiB")
    _legend(figure, grid[0, 0])
    return figure


def figure_6(rows: Sequence[LayerRow]) -> Figure:
    """Return time and memory over the initial width, a row of panels for each input size."""
    kernel = rows[0].kernel
    sizes = sorted({row.size for row in rows})
    figure = Figure(figsize=(9.0, 3.2 * len(sizes)), layout="constrained")
    grid = figure.subplots(len(sizes), 2, squeeze=False)
    for panels, size in zip(grid, sizes, strict=True):
        chosen = [row for row in rows if (row.size, row.kernel) == (size, kernel)]
        _lines(panels[0], chosen, lambda row: row.width, milliseconds)
        _lines(panels[1], chosen, lambda row: row.width, gibibytes)
        _label(panels[0], f"initial width, s = {size}", "training step, ms")
        _label(panels[1], f"initial width, s = {size}", "memory, GiB")
    _legend(figure, grid[0, 0])
    return figure


def growth(rows: Sequence[LayerRow]) -> list[list[str]]:
    """Return lines (layer, step, time, MACs, memory, theory's memory): factors from the first shape to each other."""
    lines = []
    for layer in dict.fromkeys(row.layer for row in rows):
        of_layer = [row for row in rows if row.layer == layer]
        base = of_layer[0]
        for row in of_layer[1:]:
            pairs = [
                (row.train_seconds, base.train_seconds),
                (row.theory_macs, base.theory_macs),
                (row.memory_bytes, base.memory_bytes),
                (row.theory_memory, base.theory_memory),
            ]
            lines.append([layer, _step(base, row), *(_ratio(now, before) for now, before in pairs)])
    return lines


def _step(base: LayerRow, row: LayerRow) -> str:
    names = ("size", "width", "kernel")
    pairs = [(name, getattr(base, name), getattr(row, name)) for name in names]
    return ", ".join(f"{name} {before} -> {now}" for name, before, now in pairs if now != before)


def _ratio(now: float | None, before: float | None) -> str:
    return "-" if not now or not before else f"{now / before:.2f}"


def _lines(axes: Axes, rows: Sequence[LayerRow], factor: Callable[[LayerRow], int], value: Value) -> None:
    """Draw a line for every layer; shapes that failed are left out, as the paper's dashes."""
    for number, layer in enumerate(dict.fromkeys(row.layer for row in rows)):
        points = sorted((factor(row), y) for row in rows if row.layer == layer and (y := value(row)) is not None)
        color, marker = _COLORS[number % len(_COLORS)], _MARKERS[number % len(_MARKERS)]
        axes.plot(
            [x for x, _ in points], [y for _, y in points], marker=marker, color=color, label=layer, linewidth=1.3
        )


def _legend(figure: Figure, axes: Axes) -> None:
    """Name the layers below the panels, where they cover no curve."""
    handles, names = axes.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", frameon=False, fontsize=8, ncols=_LEGEND_COLUMNS)


def _label(axes: Axes, x: str, y: str) -> None:
    axes.set(xlabel=x, ylabel=y, yscale="log")
    axes.grid(axis="y", color="#e6e9ee", linewidth=0.8)

"""Recipes of the paper cut short, beside its tables: do the differences between its rows show after a few epochs?

A cut run is a line as the log of tuning runs has them (`lab.tables.tuning`): shares of held-out training images,
certified by estimates. Its level is not the paper's; its difference to the run named in `against` is what can be set
beside the paper's.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from bronet.report.table import joined
from bronet.wording import ABSENT
from lab.tables.cells import aligned, differences
from lab.tables.paper import NOT_RUN, TITLES, row_label
from lab.tables.published import PaperRow, paper_rows
from lab.tables.tuning import TuningRow, remark_on

FILE = Path("cut") / "rows.csv"
"""Where the rows lie below the folder of results."""
TABLES = (4, 12, 14, 16)
"""The tables whose rows differ in one thing each."""


def cut_name(recipe: str) -> str:
    """Return the name of the run folder of a recipe's cut run: every sign that separates words becomes a dash."""
    return re.sub(r"[/@=.]", "-", recipe)


def cut_tables(rows: Sequence[TuningRow]) -> str:
    """Return the tables that cut runs belong to as Markdown, with what they rest on below each."""
    named = {row.run: row for row in rows}
    tables = [_table(number, named) for number in TABLES]
    return "\n".join(table for table in tables if table) or f"Cut runs: {NOT_RUN}.\n"


def _table(number: int, named: Mapping[str, TuningRow]) -> str:
    of_paper = {cut_name(row.recipe): row for row in paper_rows(number) if cut_name(row.recipe) in named}
    if not of_paper:
        return ""
    cells = [["row", "paper", "ours, cut", "paper, to the base", "ours, to the base"]]
    for name, row in of_paper.items():
        ours, base = named[name], named.get(named[name].against)
        theirs = _printed(row)
        theirs_base = _printed(of_paper[ours.against]) if ours.against in of_paper else []
        cells.append(
            [
                row_label(row),
                joined(theirs) or ABSENT,
                joined(ours.percents),
                differences(theirs, theirs_base) or ABSENT,
                (base and differences(ours.percents, base.percents)) or ABSENT,
            ]
        )
    used = [named[name] for name in of_paper]
    several = [f"{row_label(of_paper[row.run])} ({row.changed})" for row in used if ";" in row.changed]
    told = f" More than one thing differs from the base: {', '.join(several)}." if several else ""
    return (
        f"**Table {number}, {TITLES[number]}: cut to {_length(used)}**\n\n{aligned(cells)}\n{remark_on(used)}{told}\n"
    )


def _length(rows: Sequence[TuningRow]) -> str:
    return " or ".join(f"{epochs} epochs" for epochs in sorted({row.epochs for row in rows}))


def _printed(row: PaperRow) -> list[float]:
    """Return the four numbers of a row, or those of them that the paper has."""
    return [number for number in (row.clean, *row.certified) if number is not None]

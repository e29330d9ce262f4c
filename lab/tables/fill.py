"""Pages whose numbers are generated: what stands between two markers is computed from the published runs.

    <!-- generated: table 13 -->
    ...
    <!-- end -->

Blocks: `table N`, `tables` (all), `reproduced`, `runs` (every published run, and what differs from its recipe),
`run FOLDER`, `leaderboard DATA` (everybody's networks), `speedrun DATA` (the short schedule beside published rows),
`tuning RUN...` (what tuning runs changed) and `cut` (recipes of the paper cut short).
Text outside of the markers is written by hand and never touched.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from bronet.errors import BronetError
from bronet.report.table import joined, markdown_table, table_cells
from bronet.wording import ABSENT
from lab.tables.cells import aligned
from lab.tables.cut import cut_tables
from lab.tables.leaderboard import leaderboard
from lab.tables.paper import all_tables, paper_table, reproduced
from lab.tables.published import PublishedRun
from lab.tables.speedrun import speedrun_table
from lab.tables.tuning import TuningRow, changes_table

BLOCK = re.compile(r"(?P<start><!-- generated: (?P<what>[^>]+?) -->\n)(?P<text>.*?)(?P<end><!-- end -->)", re.S)


def filled(
    text: str, runs: Sequence[PublishedRun], tuning: Sequence[TuningRow] = (), cut: Sequence[TuningRow] = ()
) -> str:
    """Return a page with every generated block computed anew; raise if there is none, or one of an unknown kind.

    `tuning` are the lines of the log of tuning runs, `cut` those of recipes cut short.
    """
    if not BLOCK.search(text):
        raise BronetError("a page to fill must have a block <!-- generated: ... --> with <!-- end -->, found none")
    return BLOCK.sub(
        lambda block: f"{block['start']}\n{_content(block['what'], runs, tuning, cut)}\n{block['end']}", text
    )


def read_page(path: Path) -> str:
    """Return the text of a page."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BronetError(f"could not read the page {path} ({error})") from None


def _content(what: str, runs: Sequence[PublishedRun], tuning: Sequence[TuningRow], cut: Sequence[TuningRow]) -> str:
    word, _, rest = what.partition(" ")
    whole = {
        "reproduced": lambda: reproduced(runs),
        "runs": lambda: every_run(runs),
        "tables": lambda: all_tables(runs),
        "cut": lambda: cut_tables(cut),
    }
    if what in whole:
        return whole[what]()
    if word == "table" and rest.isdecimal():
        return paper_table(int(rest), runs)
    if word == "run":
        return markdown_table(table_cells([_named(rest, runs).evidence]))
    if word == "leaderboard":
        return leaderboard(rest, runs)
    if word == "speedrun":
        return speedrun_table(rest, runs)
    if word == "tuning":
        return changes_table(tuning, rest.split())
    kinds = f"{', '.join(whole)}, table N, run FOLDER, leaderboard DATA, speedrun DATA or tuning RUN..."
    raise BronetError(f"a block must be {kinds}, got {what!r}")


def every_run(runs: Sequence[PublishedRun]) -> str:
    """Return one line for each published run: what it is, what it gave, where and how long it was trained."""
    cells = [["folder", "recipe", "images", "clean / 36 / 72 / 108", "seed", "device", "seconds", "differs"]]
    for run in runs:
        record = run.evidence.record
        cells.append(
            [
                f"`{run.folder}`",
                f"`{run.recipe.name}`",
                f"{run.statistics.images:,}",
                joined(run.statistics.percents),
                str(run.recipe.train.seed),
                str(record.get("device", ABSENT)),
                f"{record['seconds']:,.0f}" if isinstance(record.get("seconds"), int | float) else ABSENT,
                run.remark or ABSENT,
            ]
        )
    return aligned(cells)


def _named(folder: str, runs: Sequence[PublishedRun]) -> PublishedRun:
    for run in runs:
        if run.folder == folder:
            return run
    raise BronetError(f"a block names the run {folder}, which is not among {', '.join(run.folder for run in runs)}")

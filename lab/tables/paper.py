"""The tables of the paper with our numbers beside them: paper, ours, difference, spread over seeds.

Every number of ours is recomputed from committed rows. A row without a full run of its recipe reads "not run". Times
are of different machines, so they have no difference. Below Tables 10 and 11 stands every run of ours that AutoAttack
attacked; what another attack left is no AutoAttack accuracy, and is not shown.
"""

import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

from bronet.radius import implied_radius
from bronet.recipe.schema import parse_budget
from bronet.run.attack_rows import AttackFacts
from bronet.wording import ABSENT
from lab.tables.cells import aligned
from lab.tables.published import PaperRow, PublishedRun, paper_rows, paper_tables, runs_of

AUTOATTACK = "autoattack"


def attacked_parts(runs: Sequence[PublishedRun], norm: str) -> list[str]:
    """Return a heading and a table of the finished AutoAttacks in a norm, a line for each run and radius; else none."""
    cells = [["folder", "recipe", "eps", "images", "clean", "certified", "AutoAttack", "certified broken", "differs"]]
    for run in runs:
        found = [facts for facts in run.evidence.attacks if _is_autoattack(facts, norm)]
        for facts in sorted(found, key=lambda facts: parse_budget(facts.eps)):
            shares = (facts.clean_accuracy, facts.certified_accuracy, facts.robust_accuracy)
            cells.append(
                [
                    f"`{run.folder}`",
                    f"`{run.recipe.name}`",
                    facts.eps,
                    f"{facts.images:,}",
                    *(ABSENT if share is None else f"{100 * share:.1f}" for share in shares),
                    ABSENT if facts.certified_broken is None else str(facts.certified_broken),
                    run.remark or ABSENT,
                ]
            )
    if len(cells) == 1:
        return []
    return [f"Every run of ours that AutoAttack attacked in {norm}, in percent of the attacked images.", aligned(cells)]


def _is_autoattack(facts: AttackFacts, norm: str) -> bool:
    return facts.finished and (facts.attack, facts.norm) == (AUTOATTACK, norm)


NOT_RUN = "not run"
QUOTED = "quoted"
SEPARATOR = " / "
MINUTE = 60
BYTE = 255

TITLES = {
    1: "comparison with previous works",
    2: "extra data from diffusion models",
    3: "Lipschitz convolutions as backbone",
    4: "orthogonal layers in LipConvNet",
    5: "ablation on ImageNet",
    6: "the certified radius, over correctly classified images",
    7: "notation",
    8: "complexity",
    9: "Tiny-ImageNet",
    10: "AutoAttack",
    11: "l_inf attacks",
    12: "the rank n",
    13: "LA against cross-entropy",
    14: "beta of LA",
    15: "LipConvNet in full",
    16: "depth and width of LipConvNet",
}
ELSEWHERE = {
    7: "Table 7 is notation: docs/architecture.md and the docstrings use it.",
    8: "Table 8 counts operations: `python -m lab bench layers` prints its formulas beside times; see docs/speed.md.",
}

REMARKS = {
    3: "The gradient of the published complex Cholesky layer differs from finite differences, and its kernels of LOT, "
    "Cayley and Cholesky are not centred; see docs/deviations.md."
}
"""What a reader of a table should know of the printed numbers."""


class Quantity(NamedTuple):
    """One column of a table: how the paper's row and our run say it, and with how many decimals."""

    name: str
    of_paper: Callable[[PaperRow], float | None]
    of_run: Callable[[PublishedRun], float | None]
    decimals: int
    comparable: bool = True


def paper_table(number: int, runs: Sequence[PublishedRun]) -> str:
    """Return a table as Markdown: what it compares, one line per row of the paper, the runs that it rests on."""
    title = f"**Table {number}, {TITLES[number]}**" if number in TITLES else f"**Table {number}**"
    if number in ELSEWHERE:
        return f"{title}\n\n{ELSEWHERE[number]}\n"
    quantities = quantities_of(number)
    cells = [["row", "data", "paper", "ours", "difference", "spread", "seeds"]]
    used: list[PublishedRun] = []
    changed: list[PublishedRun] = []
    for row in paper_rows(number):
        chosen = runs_of(row.recipe, list(runs)) if row.recipe else []
        used += [run for run in chosen if run not in used]
        changed += [run for run in runs if run.recipe.name == row.recipe and run.remark and run not in changed]
        cells.append([row_label(row), row.group, *_compared(row, chosen, quantities)])
    names = ", ".join(quantity.name for quantity in quantities)
    parts = [title, f"Numbers, in this order: {names}.", aligned(cells)]
    parts += [REMARKS[number]] if number in REMARKS else []
    if used:
        parts.append("Our runs: " + "; ".join(_described(run) for run in used) + ".")
    if changed:
        parts.append("Not counted: " + "; ".join(_not_counted(run, quantities) for run in changed) + ".")
    if number in ATTACKED_NORM:
        parts += attacked_parts(runs, ATTACKED_NORM[number])
    return "\n\n".join(part.rstrip() for part in parts) + "\n"


def all_tables(runs: Sequence[PublishedRun]) -> str:
    """Return every table of the paper, in its order."""
    numbers = sorted({*paper_tables(), *ELSEWHERE})
    return "\n".join(paper_table(number, runs) for number in numbers)


def reproduced(runs: Sequence[PublishedRun]) -> str:
    """Return the rows of the paper that were run, each recipe once, with how many rows that leaves."""
    cells = [["recipe", "tables", "paper", "ours", "difference", "spread", "seeds"]]
    rows = [row for row in paper_rows() if row.clean is not None and row.recipe]
    names = dict.fromkeys(row.recipe for row in rows)
    for name in names:
        chosen = runs_of(name, list(runs))
        if chosen:
            same = [row for row in rows if row.recipe == name]
            tables = ", ".join(str(number) for number in dict.fromkeys(row.table for row in same))
            cells.append([f"`{name}`", tables, *_compared(same[0], chosen, ACCURACIES)])
    count = f"{len(cells) - 1} of the {len(names)} recipes behind the paper's tables were run."
    if len(cells) == 1:
        return count + "\n"
    heading = "Clean and certified accuracy in percent, at 36/255, 72/255 and 108/255."
    return f"{heading} {count}\n\n{aligned(cells)}"


def quantities_of(number: int) -> tuple[Quantity, ...]:
    """Return the columns of a table."""
    if number == 6:
        return tuple(_of_radius(name) for name in ("median", "variance", "skewness"))
    if number in (14, 16):
        return tuple(quantity._replace(decimals=2) for quantity in ACCURACIES)
    return (*ACCURACIES, *FURTHER.get(number, ()))


def _of_accuracy(position: int, name: str) -> Quantity:
    """Clean accuracy at position 0, then the three budgets, in percent."""
    return Quantity(
        name, lambda row: (row.clean, *row.certified)[position], lambda run: run.statistics.percents[position], 1
    )


ACCURACIES = tuple(_of_accuracy(i, name) for i, name in enumerate(("clean", "36/255", "72/255", "108/255")))


def _of_radius(name: str) -> Quantity:
    return Quantity(name, lambda row: row.others.get(name), lambda run: getattr(run.statistics.radius, name), 4)


def _of_attack(key: str, norm: str, eps: str) -> Quantity:
    def of_run(run: PublishedRun) -> float | None:
        found = run.attacked("autoattack", norm, eps)
        return None if found is None else 100 * found[0]

    return Quantity(f"AutoAttack {norm} {eps}", lambda row: row.others.get(key), of_run, 1)


def _of_implied(part: int) -> Quantity:
    """Accuracy proved in the l_inf ball inside the l2 ball of the certificate."""

    def of_run(run: PublishedRun) -> float | None:
        pixels, rows = run.evidence.certificate.pixels, run.evidence.rows
        proved = (row.correct and implied_radius(row.radius, norm="linf", pixels=pixels) > part / BYTE for row in rows)
        return 100 * sum(proved) / len(rows)

    return Quantity(f"certified linf {part}/255", lambda row: row.others.get(f"certified_linf_{part}"), of_run, 1)


def _of_time(key: str, unit: int) -> Quantity:
    def of_run(run: PublishedRun) -> float | None:
        seconds = run.seconds_per_epoch
        return None if seconds is None else seconds / unit

    return Quantity(key.replace("_", " "), lambda row: row.others.get(key), of_run, 2 if unit > 1 else 1, False)


def _printed(key: str) -> Quantity:
    """A number that the paper prints and that we do not measure."""
    return Quantity(key.replace("_", " "), lambda row: row.others.get(key), lambda run: None, 1, False)


FURTHER: dict[int, tuple[Quantity, ...]] = {
    10: tuple(_of_attack(f"autoattack_{part}", "l2", f"{part}/255") for part in (36, 72, 108)),
    11: (
        *(_of_attack(f"linf_{part}", "linf", f"{part}/255") for part in (2, 8)),
        *(_of_implied(part) for part in (2, 8)),
    ),
    12: (_of_time("minutes_per_epoch", MINUTE),),
    15: (_of_time("train_seconds", 1), _printed("inference_seconds")),
}
"""Columns after the accuracies."""
ATTACKED_NORM = {10: "l2", 11: "linf"}
"""Tables below which every attacked run of ours stands, also of networks that the paper did not attack."""


def _compared(row: PaperRow, runs: Sequence[PublishedRun], quantities: Sequence[Quantity]) -> list[str]:
    """Return the texts of paper, ours, difference, spread and seeds."""
    printed = [quantity.of_paper(row) for quantity in quantities]
    paper = _joined(printed, quantities) if any(value is not None for value in printed) else "out of memory"
    if not runs:
        return [paper, NOT_RUN if row.recipe else QUOTED, ABSENT, ABSENT, ABSENT]
    values = [[value for run in runs if (value := q.of_run(run)) is not None] for q in quantities]
    ours = [statistics.fmean(found) if found else None for found in values]
    apart = [
        mine - theirs if mine is not None and theirs is not None and quantity.comparable else None
        for mine, theirs, quantity in zip(ours, printed, quantities, strict=True)
    ]
    spread = [statistics.stdev(found) if len(found) > 1 else None for found in values]
    seeds = ", ".join(str(run.recipe.train.seed) for run in runs)
    spread_text = _joined(spread, quantities) if any(value is not None for value in spread) else ABSENT
    return [paper, _joined(ours, quantities), _joined(apart, quantities, sign="+"), spread_text, seeds]


def row_label(row: PaperRow) -> str:
    """Return the row's name with what the paper says of its size."""
    layers = [f"{row.others['layers']:g} layers"] if "layers" in row.others else []
    size = ", ".join([*layers, *([row.parameters] if row.parameters else [])])
    return f"{row.row} ({size})" if size else row.row


def _joined(values: Sequence[float | None], quantities: Sequence[Quantity], sign: str = "") -> str:
    texts = (
        ABSENT if value is None else f"{value:{sign}z.{quantity.decimals}f}"
        for value, quantity in zip(values, quantities, strict=True)
    )
    return SEPARATOR.join(texts)


def _not_counted(run: PublishedRun, quantities: Sequence[Quantity]) -> str:
    numbers = _joined([quantity.of_run(run) for quantity in quantities], quantities)
    return f"`{run.folder}`, {numbers} ({run.remark})"


def _described(run: PublishedRun) -> str:
    record = run.evidence.record
    attacked = {facts.images for facts in run.evidence.attacks if facts.attack == "autoattack"}
    parts = [
        str(record.get("device", "device unknown")),
        f"{run.recipe.train.precision}",
        *(f"{count:,} images attacked" for count in sorted(c for c in attacked if isinstance(c, int))),
    ]
    return f"`{run.folder}` ({', '.join(parts)})"

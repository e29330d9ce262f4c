"""Every published run that AutoAttack attacked, below Tables 10 and 11: also networks that the paper did not attack.

What another attack left is no AutoAttack accuracy, and is not shown.
"""

from collections.abc import Sequence

from bronet.files import Json
from bronet.recipe.schema import parse_budget
from bronet.report.table import ABSENT, aligned
from lab.tables.published import PublishedRun

AUTOATTACK = "autoattack"
SHARES = ("clean_accuracy", "certified_accuracy", "robust_accuracy")


def attacked_parts(runs: Sequence[PublishedRun], norm: str) -> list[str]:
    """Return a heading and a table of the finished AutoAttacks in a norm, a line for each run and radius; else none."""
    cells = [["folder", "recipe", "eps", "images", "clean", "certified", "AutoAttack", "certified broken", "differs"]]
    for run in runs:
        found = [facts for facts in run.evidence.attacks if _is_autoattack(facts, norm)]
        for facts in sorted(found, key=lambda facts: parse_budget(str(facts["eps"]))):
            shares = [facts.get(key) for key in SHARES]
            cells.append(
                [
                    f"`{run.folder}`",
                    f"`{run.recipe.name}`",
                    str(facts["eps"]),
                    f"{facts['images']:,}",
                    *(f"{100 * share:.1f}" if isinstance(share, int | float) else ABSENT for share in shares),
                    str(facts.get("certified_broken", ABSENT)),
                    run.remark or ABSENT,
                ]
            )
    if len(cells) == 1:
        return []
    return [f"Every run of ours that AutoAttack attacked in {norm}, in percent of the attacked images.", aligned(cells)]


def _is_autoattack(facts: Json, norm: str) -> bool:
    finished = "robust_accuracy" in facts and isinstance(facts.get("images"), int)
    return finished and (facts.get("attack"), facts.get("norm")) == (AUTOATTACK, norm)

"""Every published run that AutoAttack attacked, below Tables 10 and 11: also networks that the paper did not attack.

What another attack left is no AutoAttack accuracy, and is not shown.
"""

from collections.abc import Sequence

from bronet.recipe.schema import parse_budget
from bronet.report.table import ABSENT, aligned
from bronet.run.attack_rows import AttackFacts
from lab.tables.published import PublishedRun

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

"""Where runs differ: in the images that they prove, one by one, and in the settings of their recipes."""

from collections.abc import Sequence

from bronet.errors import BronetError
from bronet.recipe.schema import parse_budget
from bronet.recipe.text import flatten
from bronet.records import as_plain
from bronet.report.evidence import Evidence
from bronet.run.folder import RunFolder
from bronet.wording import ABSENT, percent


def same_images(runs: Sequence[Evidence]) -> bool:
    """Whether all runs were certified on the same images in the same order."""
    first, *others = [(run.certificate.images_sha256, [row.index for row in run.rows]) for run in runs]
    return all(other == first for other in others)


def difference_cells(runs: Sequence[Evidence]) -> list[list[str]]:
    """Return which share of the images is proved by all runs, by one alone and by none; nothing if images differ."""
    if not same_images(runs):
        return []
    table = [["proved by", *(f"ε = {eps}" for eps in runs[0].eps)]]
    counts: dict[str, list[str]] = {"all runs": [], **{f"{run.name} alone": [] for run in runs}, "none": []}
    for eps in runs[0].eps:
        radius, images = parse_budget(eps), len(runs[0].rows)
        proved = [[row.correct and row.radius > radius for row in run.rows] for run in runs]
        of_image = [sum(each) for each in zip(*proved, strict=True)]
        counts["all runs"].append(percent(of_image.count(len(runs)) / images))
        for run, own in zip(runs, proved, strict=True):
            alone = sum(one and count == 1 for one, count in zip(own, of_image, strict=True))
            counts[f"{run.name} alone"].append(percent(alone / images))
        counts["none"].append(percent(of_image.count(0) / images))
    return table + [[what, *shares] for what, shares in counts.items()]


def setting_cells(runs: Sequence[Evidence]) -> list[list[str]]:
    """Return the settings in which the recipes differ, a column for each run; only a header if none can be told."""
    table = [["setting", *(run.name for run in runs)]]
    try:
        recipes = [flatten(as_plain(RunFolder(run.folder).recipe)) for run in runs]
    except BronetError:
        return table
    keys = dict.fromkeys(key for recipe in recipes for key in recipe)
    for key in keys:
        values = [str(recipe.get(key, ABSENT)) for recipe in recipes]
        if len(set(values)) > 1:
            table.append([key, *values])
    return table

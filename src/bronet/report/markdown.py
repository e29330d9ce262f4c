"""The report of one run as Markdown: the line of the paper's tables, the radius (Table 6), classes, attacks."""

from collections.abc import Sequence

from bronet.report.classes import class_cells, per_class
from bronet.report.table import Summary, markdown_table, paper_line, percent


def markdown_summary(summary: Summary) -> str:
    """Return the whole text, ending with a line break."""
    certificate, statistics = summary.evidence.certificate, summary.statistics
    radii = ", ".join(entry.text for entry in statistics.certified)
    parts = [
        markdown_table([summary]),
        f"Clean and certified accuracy in percent (clean, {radii}): **{paper_line(statistics)}**\n",
        _cost(summary),
        "By class:\n\n" + lines(class_cells(per_class(summary.evidence))),
    ]
    if summary.evidence.attacks:
        parts.append("Under attack, of the images attacked:\n\n" + lines(_attack_cells(summary)))
    parts.append(f"Weights (SHA-256): `{certificate.weights_sha256}`\n")
    return "\n".join(part for part in parts if part)


def lines(cells: Sequence[Sequence[str]]) -> str:
    """Return cells, the header first, as a Markdown table."""
    header, *rest = ([cell.replace("|", "\\|") for cell in line] for line in cells)
    ruler = ["---", *["---:"] * (len(header) - 1)]
    return "".join(f"| {' | '.join(line)} |\n" for line in (header, ruler, *rest))


def _cost(summary: Summary) -> str:
    certificate = summary.evidence.certificate
    if certificate.soundness_cost.relative_median is None:
        return ""
    cost = 100 * certificate.soundness_cost.relative_median
    costs, gives = f"Being a proof costs {cost:.2g} % of the radius", f"The proof gives {-cost:.2g} % more radius"
    return (
        f"{costs if cost >= 0 else gives} (median, against float32 and power iteration, which are not a proof); "
        f"at most {certificate.rounding.worst:.1e} of a margin goes to rounding.\n"
    )


def _attack_cells(summary: Summary) -> list[list[str]]:
    table = [["attack", "norm", "eps", "images", "clean", "not broken", "proved"]]
    for facts in summary.evidence.attacks:
        if "robust_accuracy" not in facts:
            continue  # not finished yet
        shares = (facts[f"{name}_accuracy"] for name in ("clean", "robust", "certified"))
        texts = (percent(float(str(share))) for share in shares)
        table.append([*(str(facts.get(key)) for key in ("attack", "norm", "eps", "images")), *texts])
    return table

"""The report of one run as a single HTML page and as Markdown: the paper's line, radii (Table 6), classes, attacks.

The page is readable offline, printable, light or dark with the reader's system. It loads nothing: style and pictures
are inside, there is no script, and everything that comes from a file of the run is escaped.
"""

import base64
import json
import shlex
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from string import Template

from bronet.report.statistics import class_cells, per_class
from bronet.report.table import ABSENT, Summary, markdown_table, number_text, paper_line, percent
from bronet.wording import bound_text

IDEA = (
    "When the pixels move by a distance r, the gap between two outputs of this network moves by at most r times a "
    "known bound.",
    "So an image that leads by a margin keeps its class in a ball around it: certified numbers count such proofs, and "
    "no attack can lower them.",
)


def build_page(summary: Summary, *, light: bytes, dark: bytes) -> str:
    """Return the page; `light` and `dark` are the same curve as PNG files in two themes."""
    evidence, certificate = summary.evidence, summary.evidence.certificate
    template = Template(files("bronet.report").joinpath("page.html").read_text(encoding="utf-8"))
    return template.substitute(
        name=escape(evidence.name),
        subtitle=escape(f"{certificate.data}, {certificate.split} split, {certificate.images:,} images"),
        idea="".join(f"<p>{escape(line)}</p>" for line in IDEA),
        tiles=_tiles(summary),
        light=base64.b64encode(light).decode(),
        dark=base64.b64encode(dark).decode(),
        caption=escape(_caption(summary)),
        distribution=_distribution(summary),
        layers=_layers(summary),
        total=escape(bound_text(certificate.lipschitz)),
        proof=escape(_proof(summary)),
        recipe=escape(evidence.recipe),
        training=_training(summary),
        commands=escape(_commands(summary)),
        facts=_facts(summary),
    )


def _tiles(summary: Summary) -> str:
    statistics = summary.statistics
    tiles = [("clean accuracy", percent(statistics.clean_accuracy))]
    tiles += [(f"certified at ε\u00a0=\u00a0{entry.text}", percent(entry.accuracy)) for entry in statistics.certified]
    tiles += [("median radius", number_text(statistics.radius.median))]
    return "".join(f"<div><dt>{escape(label)}</dt><dd>{escape(value)}</dd></div>" for label, value in tiles)


def _caption(summary: Summary) -> str:
    return (
        f"Share of the {summary.statistics.images:,} images whose class is correct and proved constant within the "
        "radius. Each step is one image."
    )


def _distribution(summary: Summary) -> str:
    statistics = summary.statistics
    cells = [f"{statistics.correct:,}", *(number_text(value) for value in statistics.radius)]
    headings = ("correct images", "median radius", "variance", "skewness")
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    return f"<tr>{head}</tr><tr>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"


def _layers(summary: Summary) -> str:
    return "".join(
        f"<tr><td><code>{escape(layer.name)}</code></td><td>{escape(layer.kind)}</td>"
        f"<td>{escape(bound_text(layer.lipschitz))}</td><td>{layer.rounding_gain:.1g}</td></tr>"
        for layer in summary.evidence.certificate.layers
    )


def _proof(summary: Summary) -> str:
    certificate = summary.evidence.certificate
    beyond = sum(row.naive_radius > row.radius for row in summary.evidence.rows)
    return (
        f"Computed in {certificate.precision} in {certificate.seconds:.1f} s. The rounding of the program itself is "
        f"counted: at most {certificate.rounding.worst:.1e} is taken from a margin for it. The usual estimate "
        "(single precision, power iteration, no rounding) would have claimed more than is proved for "
        f"{beyond:,} of {summary.statistics.images:,} images."
    )


def _training(summary: Summary) -> str:
    """Return one sentence about training, from the last line of the log; nothing without a log."""
    log = summary.evidence.log
    if not log:
        return ""
    last = ", ".join(f"{key} {_plain(value)}" for key, value in log[-1].items())
    return f"<p>{len(log)} epochs logged; the last one says: {escape(last)}.</p>"


def _commands(summary: Summary) -> str:
    evidence = summary.evidence
    trained = evidence.record.get("command")
    report = shlex.join(["bronet", "report", str(evidence.folder)])
    lines = [*([str(trained)] if trained else []), evidence.certificate.command, report]
    return "\n".join(dict.fromkeys(lines))  # the quick start trains and certifies by one command


def _facts(summary: Summary) -> str:
    evidence = summary.evidence
    facts = {**evidence.record, "weights (SHA-256)": evidence.certificate.weights_sha256}
    facts.pop("command", None)
    return "".join(f"<tr><th>{escape(key)}</th><td>{escape(_plain(value))}</td></tr>" for key, value in facts.items())


def _plain(value: object) -> str:
    """Return a JSON value as text for a reader."""
    match value:
        case str():
            return value
        case float():
            return f"{value:.6g}"
        case dict():
            return ", ".join(f"{key} {_plain(entry)}" for key, entry in value.items())
        case None:
            return "unknown"
        case _:
            return json.dumps(value)


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
        shares = (facts.clean_accuracy, facts.robust_accuracy, facts.certified_accuracy)
        if facts.finished:
            texts = (ABSENT if share is None else percent(share) for share in shares)
            table.append([facts.attack, facts.norm, facts.eps, str(facts.images), *texts])
    return table

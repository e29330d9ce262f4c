"""The report of one run as a single HTML page and as Markdown: the paper's line, radii (Table 6), classes, attacks.

The page is readable offline, printable, light or dark with the reader's system. It loads nothing: style and pictures
are inside, there is no script, and everything that comes from a file of the run is escaped.
"""

import base64
import json
import shlex
from html import escape
from importlib.resources import files
from string import Template

from bronet.report.evidence import Evidence
from bronet.report.table import DISTRIBUTION, joined, markdown_table, table_cells
from bronet.wording import ABSENT, bound_text, number_text, percent

IDEA = (
    "When the pixels move by a distance r, the gap between two outputs of this network moves by at most r times a "
    "known bound.",
    "So an image that leads by a margin keeps its class in a ball around it: certified numbers count such proofs, and "
    "no attack can lower them.",
)


def build_page(run: Evidence, *, light: bytes, dark: bytes) -> str:
    """Return the page; `light` and `dark` are the same curve as PNG files in two themes."""
    certificate, statistics = run.certificate, run.statistics
    template = Template(files("bronet.report").joinpath("page.html").read_text(encoding="utf-8"))
    tiles = {
        "clean accuracy": percent(statistics.clean_accuracy),
        **{f"certified at ε\u00a0=\u00a0{eps}": percent(share) for eps, share in statistics.certified.items()},
        "median radius": number_text(statistics.radius.median),
    }
    headings = ("correct images", *DISTRIBUTION)
    numbers = (f"{statistics.correct:,}", *(number_text(value) for value in statistics.radius))
    facts = {**run.record, "weights (SHA-256)": certificate.weights_sha256}
    trained = facts.pop("command", None)
    # The quick start trains and certifies by one command.
    commands = [str(trained)] if trained else []
    commands += [certificate.command, shlex.join(["bronet", "report", str(run.folder)])]
    return template.substitute(
        name=escape(run.name),
        subtitle=escape(f"{certificate.data}, {certificate.split} split, {certificate.images:,} images"),
        idea="".join(f"<p>{escape(line)}</p>" for line in IDEA),
        tiles="".join(f"<div><dt>{escape(what)}</dt><dd>{escape(value)}</dd></div>" for what, value in tiles.items()),
        light=base64.b64encode(light).decode(),
        dark=base64.b64encode(dark).decode(),
        caption=escape(
            f"Share of the {statistics.images:,} images whose class is correct and proved constant within the radius. "
            "Each step is one image."
        ),
        distribution="".join(f"<th>{escape(heading)}</th>" for heading in headings)
        + "</tr><tr>"
        + "".join(f"<td>{escape(number)}</td>" for number in numbers),
        layers="".join(
            f"<tr><td><code>{escape(layer.name)}</code></td><td>{escape(layer.kind)}</td>"
            f"<td>{escape(bound_text(layer.lipschitz))}</td><td>{layer.rounding_gain:.1g}</td></tr>"
            for layer in certificate.layers
        ),
        total=escape(bound_text(certificate.lipschitz)),
        proof=escape(_proof(run)),
        recipe=escape(run.recipe),
        training=_training(run),
        commands=escape("\n".join(dict.fromkeys(commands))),
        facts="".join(f"<tr><th>{escape(key)}</th><td>{escape(_plain(fact))}</td></tr>" for key, fact in facts.items()),
    )


def _proof(run: Evidence) -> str:
    certificate = run.certificate
    beyond = sum(row.naive_radius > row.radius for row in run.rows)
    return (
        f"Computed in {certificate.precision} in {certificate.seconds:.1f} s. The rounding of the program itself is "
        f"counted: at most {certificate.rounding.worst:.1e} is taken from a margin for it. The usual estimate "
        "(single precision, power iteration, no rounding) would have claimed more than is proved for "
        f"{beyond:,} of {len(run.rows):,} images."
    )


def _training(run: Evidence) -> str:
    """Return one sentence about training, from the last line of the log; nothing without a log."""
    if not run.log:
        return ""
    last = ", ".join(f"{key} {_plain(value)}" for key, value in run.log[-1].items())
    return f"<p>{len(run.log)} epochs logged; the last one says: {escape(last)}.</p>"


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


def markdown_summary(run: Evidence) -> str:
    """Return the whole text, ending with a line break."""
    statistics, radii = run.statistics, ", ".join(run.statistics.certified)
    parts = [
        markdown_table(table_cells([run])),
        f"Clean and certified accuracy in percent (clean, {radii}): **{joined(statistics.percents)}**\n",
        _cost(run),
        "By class:\n\n" + markdown_table(_class_cells(run)),
    ]
    if run.attacks:
        parts.append("Under attack, of the images attacked:\n\n" + markdown_table(_attack_cells(run)))
    parts.append(f"Weights (SHA-256): `{run.certificate.weights_sha256}`\n")
    return "\n".join(part for part in parts if part)


def _class_cells(run: Evidence) -> list[list[str]]:
    table = [["class", "images", "clean", *(f"ε = {eps}" for eps in run.eps), "median radius"]]
    for name, own in run.by_class().items():
        shares = (f"{share:.1f}" for share in own.percents)
        table.append([name, str(own.images), *shares, f"{own.radius.median:.4f}"])
    return table


def _cost(run: Evidence) -> str:
    certificate = run.certificate
    if certificate.soundness_cost.relative_median is None:
        return ""
    cost = 100 * certificate.soundness_cost.relative_median
    costs, gives = f"Being a proof costs {cost:.2g} % of the radius", f"The proof gives {-cost:.2g} % more radius"
    return (
        f"{costs if cost >= 0 else gives} (median, against float32 and power iteration, which are not a proof); "
        f"at most {certificate.rounding.worst:.1e} of a margin goes to rounding.\n"
    )


def _attack_cells(run: Evidence) -> list[list[str]]:
    table = [["attack", "norm", "eps", "images", "clean", "not broken", "proved"]]
    for facts in run.attacks:
        shares = (facts.clean_accuracy, facts.robust_accuracy, facts.certified_accuracy)
        if facts.finished:
            texts = (ABSENT if share is None else percent(share) for share in shares)
            table.append([facts.attack, facts.norm, facts.eps, str(facts.images), *texts])
    return table

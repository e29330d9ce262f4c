"""The report of one run or several as a single HTML page, and that of one run as Markdown.

The page is readable offline, printable, on a phone, light or dark with the reader's system. It loads nothing: style,
charts and pictures are inside, there is no script, and everything that comes from a file of the run is escaped.
"""

import json
import shlex
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template

from bronet.recipe.schema import parse_budget
from bronet.report.evidence import Evidence
from bronet.report.figures import curve_chart, margins_chart
from bronet.report.gallery import gallery_html, widest_html
from bronet.report.table import DISTRIBUTION, difference_cells, joined, markdown_table, setting_cells, table_cells
from bronet.wording import ABSENT, bound_text, number_text, percent

IDEA = (
    '<section class="idea"><p>When the pixels move by a distance r, the gap between two outputs of this network moves '
    "by at most r times a known bound.</p><p>So an image that leads by a margin keeps its class in a ball around it: "
    "certified numbers count such proofs, and no attack can lower them.</p></section>"
)
LEAD = "How far the first class leads the second; to the left of the dotted line is the wrong class ahead."
STEPS = "Each step is one image; dotted are the radii of the table."
CAPTIONS = "Each image with its predicted class and the certified radius r, within which no change alters that class."
CLOSEST = " Below it, the nearest image with another class that an attack found: the class, and how far away it is."
GLUED = "ε\u00a0="
"""So that a narrow heading breaks before its number."""
Cells = Sequence[Sequence[str]]


def build_page(run: Evidence, *, data_dir: Path | None) -> str:
    """Return the page of one run, with images of the data set if it is at hand."""
    certificate, statistics = run.certificate, run.statistics
    numbers = {
        "clean accuracy": percent(statistics.clean_accuracy),
        **{f"certified at ε\u00a0=\u00a0{eps}": percent(share) for eps, share in statistics.certified.items()},
        "median radius": number_text(statistics.radius.median),
    }
    tiles = (f"<div>{_tag('dt', what)}{_tag('dd', value)}</div>" for what, value in numbers.items())
    distribution = [
        ["correct images", *DISTRIBUTION],
        [f"{statistics.correct:,}", *(number_text(value) for value in statistics.radius)],
    ]
    margins = margins_chart({"test images": run.rows, "training images": run.train_rows})
    classes, bound = _class_cells(run), bound_text(certificate.lipschitz)
    facts = {**run.record, "weights (SHA-256)": certificate.weights_sha256}
    trained = facts.pop("command", None)
    # The quick start trains and certifies by one command.
    commands = dict.fromkeys([*([str(trained)] if trained else []), certificate.command, _command([run])])
    parts = [
        f'<dl class="tiles">{"".join(tiles)}</dl>',
        _curves([run]),
        _tag("h2", "The radius of correctly classified images") + _table(distribution),
        _tag("h2", "Images") + _note(CAPTIONS + (CLOSEST if run.closest else "")) + gallery_html(run, data_dir),
        _tag("h2", "Margins") + margins + _note(LEAD) if margins else "",
        _tag("h2", "By class") + _folded(f"{len(classes) - 1} classes", _table(classes), shown=10),
        _tag("h2", "Under attack") + _table(_attack_cells(run)) if run.attacks else "",
        _tag("h2", "What is proved")
        + _note(_proof(run))
        + _tag("p", f"All layers before the head together: at most {bound}. {_alignment(run)}"),
        _folded(f"The bounds of {len(certificate.layers)} layers", _table(_layer_cells(run))),
        _tag("h2", "How to reproduce it"),
        _tag("pre", "\n".join(commands)),
        _training(run),
        _facts({key: _plain(fact) for key, fact in facts.items()}),
        _tag("h2", "Recipe") + _folded("Every setting of the run", _tag("pre", run.recipe)),
    ]
    return _page(run.name, f"Certified robustness on {certificate.data}, {run.images}", parts)


def build_comparison(runs: Sequence[Evidence], *, data_dir: Path | None) -> str:
    """Return the page of several runs: their curves, their table, and where they differ."""
    settings, differences = setting_cells(runs), difference_cells(runs)
    # A line for each quantity: runs are few, quantities are many.
    parts = [_curves(runs), _tag("h2", "Results") + _table(list(zip(*table_cells(runs), strict=True)))]
    parts.append(_tag("h2", "Where they differ"))
    if differences:
        parts += [_note("Share of the images that are proved correct by all runs, by one alone, and by none.")]
        parts += [_table(differences), widest_html(runs, data_dir)]
    else:
        parts += [_note("The runs were certified on different images, so single images are not compared.")]
    if len(settings) > 1:
        parts += [_tag("h2", "Settings that differ"), _table(settings)]
    parts += [_tag("h2", "How to reproduce it"), _tag("pre", _command(runs))]
    images = dict.fromkeys(f"{run.certificate.data}, {run.images}" for run in runs)
    return _page(", ".join(run.name for run in runs), f"Certified robustness on {'; '.join(images)}", parts)


def _command(runs: Sequence[Evidence]) -> str:
    radii = [word for eps in runs[0].eps for word in ("--eps", eps)]
    is_default = len(runs) == 1 and runs[0].eps == runs[0].certificate.eps
    return shlex.join(["bronet", "report", *(str(run.folder) for run in runs), *([] if is_default else radii)])


def _page(title: str, subtitle: str, parts: Sequence[str]) -> str:
    template = Template(files("bronet.report").joinpath("page.html").read_text(encoding="utf-8"))
    body = "\n".join(part for part in (IDEA, *parts) if part)
    return template.substitute(title=escape(title), subtitle=escape(subtitle), body=body)


def _tag(name: str, text: str) -> str:
    return f"<{name}>{escape(text)}</{name}>"


def _note(text: str) -> str:
    return f'<p class="note">{escape(text)}</p>'


def _folded(title: str, content: str, *, shown: int = 0) -> str:
    """Return what a reader opens by a click; it is open from the start if it is short."""
    is_short = content.count("<tr>") <= shown + 1
    return f"<details{' open' if is_short and shown else ''}>{_tag('summary', title)}{content}</details>"


def _table(cells: Cells) -> str:
    header, *lines = cells
    body = "".join(_line(line, "td") for line in lines)
    return (
        f'<div class="scroll"><table class="numbers"><thead>{_line(header, "th")}</thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _line(cells: Sequence[str], kind: str) -> str:
    return f"<tr>{''.join(_tag(kind, cell).replace('ε =', GLUED) for cell in cells)}</tr>"


def _facts(facts: dict[str, str]) -> str:
    lines = (f"<tr>{_tag('th', key)}{_tag('td', value)}</tr>" for key, value in facts.items())
    return f'<div class="scroll"><table class="facts">{"".join(lines)}</table></div>'


def _curves(runs: Sequence[Evidence]) -> str:
    chart = curve_chart({run.name: run.rows for run in runs}, [parse_budget(eps) for run in runs for eps in run.eps])
    of = f", of {runs[0].images}" if len(runs) == 1 else ""
    return chart + _note(f"Share that is classified correctly and proved to stay so within the radius{of}. {STEPS}")


def _proof(run: Evidence) -> str:
    certificate = run.certificate
    beyond = sum(row.naive_radius > row.radius for row in run.rows)
    return (
        f"Computed in {certificate.precision} in {certificate.seconds:.1f} s. The rounding of the program itself is "
        f"counted: at most {certificate.rounding.worst:.1e} is taken from a margin for it. The usual estimate "
        "(single precision, power iteration, no rounding) would have claimed more than is proved for "
        f"{beyond:,} of {len(run.rows):,} images."
    )


def _alignment(run: Evidence) -> str:
    """Return how much of the constants margins use, in words; nothing of certificates that do not say it."""
    found = run.certificate.alignment
    if found is None:
        return ""
    lost = [(share, layer.name) for share, layer in zip(found.layers, run.certificate.layers, strict=True) if share]
    least, name = min(lost, default=(1.0, ""))
    where = f", least in {name} ({percent(least)})" if name else ""
    return (
        f"At the images, gradients of margins reach {percent(found.median)} of the proved constant (median of "
        f"{found.images}){where}: the rest is radius that training leaves unused. No proof depends on it."
    )


def _training(run: Evidence) -> str:
    """Return one sentence about training, from the last line of the log; nothing without a log."""
    return _tag("p", f"{len(run.log)} epochs logged; the last one says: {_plain(run.log[-1])}.") if run.log else ""


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
        f"{told}\n" if (told := _alignment(run)) else "",
        "By class:\n\n" + markdown_table(_class_cells(run)),
    ]
    if run.attacks:
        parts.append("Under attack, of the images attacked:\n\n" + markdown_table(_attack_cells(run)))
    parts.append(f"Weights (SHA-256): `{run.certificate.weights_sha256}`\n")
    return "\n".join(part for part in parts if part)


def _layer_cells(run: Evidence) -> list[list[str]]:
    """Return the bound of every layer and, of certificates that say it, how much of the bound is used."""
    layers = run.certificate.layers
    table = [["layer", "kind", "Lipschitz bound", "rounding gain"]]
    table += [[layer.name, layer.kind, bound_text(layer.lipschitz), f"{layer.rounding_gain:.1g}"] for layer in layers]
    if (alignment := run.certificate.alignment) is None:
        return table
    shares = (ABSENT if share is None else percent(share) for share in alignment.layers)
    return [[*line, share] for line, share in zip(table, ("alignment", *shares), strict=True)]


def _class_cells(run: Evidence) -> list[list[str]]:
    table = [["class", "images", "clean", *(f"ε = {eps}" for eps in run.eps), "median radius"]]
    for name, own in run.by_class().items():
        shares = (f"{share:.1f}" for share in own.percents)
        table.append([name, str(own.images), *shares, number_text(own.radius.median)])
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

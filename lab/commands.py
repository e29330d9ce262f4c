"""The command line of the laboratory: parse, call, print."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bronet.cli import Commands
from bronet.cli.options import DataDirOption, DeviceOption, LayersOption, out_option, run_layer_files, usable_device
from bronet.errors import BronetError
from lab.analyze.commands import app as analyze
from lab.bench.commands import app as bench
from lab.publish_commands import pack, publish, round_weights
from lab.tables.published import RESULTS, published_runs

if TYPE_CHECKING:
    from rich.table import Table

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / name for name in ("README.md", "docs/results.md", "docs/speedrun.md", "docs/leaderboard.md")]
DRAWINGS = ROOT / "docs" / "figures"
ResultsOption = Annotated[Path, typer.Option("--results", help="Folder of published runs.")]

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(analyze, name="analyze")
app.add_typer(bench, name="bench")
app.command("round")(round_weights)
app.command()(publish)
app.command()(pack)


@app.callback()
def lab(layers: LayersOption = None) -> None:
    """Compute the paper's tables and figures, and what the pages of results print."""
    run_layer_files(layers or [])


@app.command()
def tables(
    numbers: Annotated[
        list[int] | None, typer.Argument(metavar="N", help="Tables of the paper. Default: all.", show_default=False)
    ] = None,
    *,
    results: ResultsOption = RESULTS,
) -> None:
    """Print tables of the paper with our numbers beside them.

    Example:  python -m lab tables 13

    As Markdown. Needs no weights and no GPU. Writes nothing.
    """
    from lab.tables.paper import all_tables, paper_table

    runs = published_runs(results)
    text = "\n".join(paper_table(number, runs) for number in numbers) if numbers else all_tables(runs)
    typer.echo(text, nl=False)


@app.command()
def fill(
    pages: Annotated[
        list[Path] | None,
        typer.Argument(metavar="PAGE", help="Default: README and the pages of results.", show_default=False),
    ] = None,
    *,
    results: ResultsOption = RESULTS,
) -> None:
    """Compute the generated blocks of Markdown pages anew.

    Example:  python -m lab fill docs/results.md

    Rewrites what stands between the markers of a page; all pages are computed before the first is written.
    """
    from bronet.files import replace_text
    from lab.tables import cut, tuning
    from lab.tables.fill import filled, read_page

    runs = published_runs(results)
    logs = [tuning.read_tuning(results / file) for file in (tuning.FILE, cut.FILE)]
    texts = {page: filled(read_page(page), runs, *logs) for page in pages or PAGES}
    for page, text in texts.items():
        replace_text(page, text)
        typer.echo(f"filled   {page}")


@app.command()
def figure(
    number: Annotated[int, typer.Argument(metavar="3|12", help="Figure of the paper.", show_default=False)],
    *,
    results: ResultsOption = RESULTS,
    out: Annotated[Path, out_option("Folder to write to.")] = Path("report"),
) -> None:
    """Draw CE, CE+CR and LA from published runs. Certified accuracy (3) or margins (12).

    Example:  python -m lab figure 3

    Writes figure-N.png and .pdf into --out. `python -m lab analyze` draws figures 1, 10, 11 and 13.
    """
    from bronet.files import replace_bytes
    from bronet.report.figures import figure_bytes
    from lab.analyze.run_figures import draw_figure

    drawn = draw_figure(number, published_runs(results))
    contents = {
        out / f"figure-{number}.png": figure_bytes(drawn, "png"),
        out / f"figure-{number}.pdf": figure_bytes(drawn, "pdf"),
    }
    for path, content in contents.items():
        replace_bytes(path, content)
        typer.echo(f"wrote    {path}")


@app.command()
def draw(*, out: Annotated[Path, out_option("Folder to write to.")] = DRAWINGS) -> None:
    """Draw every diagram of the documentation.

    Example:  python -m lab draw

    Writes NAME.svg into --out.
    """
    from bronet.files import replace_text
    from lab.figures import drawings

    for name, text in drawings().items():
        replace_text(out / f"{name}.svg", text)
        typer.echo(f"wrote    {out / name}.svg")


@app.command()
def recipes(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="A recipe or a sweep.", show_default=False)] = None,
    *,
    table: Annotated[
        int | None, typer.Option("--table", metavar="N", help="Only one table of the paper.", show_default=False)
    ] = None,
) -> None:
    """List the recipes of the paper's tables. Of a recipe's NAME, print it as YAML; of a sweep's, list its members.

    Example:  python -m lab recipes cifar100/la-beta@loss.beta=3 > beta-3.yaml

    `bronet train` reads the YAML. Those that bronet trains by name are in `bronet recipes`, too. Writes nothing.
    """
    from bronet.cli.console import PIPE_WIDTH, open_console
    from bronet.recipe import to_text
    from lab.recipes import ablations, sweeps, table_recipe

    if name is not None and table is not None:
        raise BronetError(f"give a NAME or --table, got {name} and {table}")
    if table is not None:
        console = open_console()
        console.width = max(console.width, PIPE_WIDTH)  # no number is cut
        console.print(_paper_table(table), soft_wrap=True)
    elif name is None:
        for known in (*ablations(), *sweeps()):
            typer.echo(known)
    elif name in sweeps():
        for member in sweeps()[name].members():
            typer.echo(member.name)
    else:
        typer.echo(to_text(table_recipe(name)), nl=False)


@app.command()
def run(
    what: Annotated[
        list[str],
        typer.Argument(
            metavar="TABLE", help="A table's number, a recipe (name or YAML file), or a file of such lines."
        ),
    ],
    *,
    seeds: Annotated[list[int] | None, typer.Option("--seed", metavar="N", help="May be repeated. Default: 0.")] = None,
    runs: Annotated[Path, typer.Option("--runs", help="Folder for the runs and their logs.")] = Path("runs"),
    results: ResultsOption = RESULTS,
    device: DeviceOption = "auto",
    together: Annotated[int, typer.Option("--together", metavar="N", help="Runs at once, for one GPU.")] = 1,
    data_dir: DataDirOption = None,
    dry: Annotated[bool, typer.Option("--dry-run", help="Only list what would run.")] = False,
) -> None:
    """Train, certify and publish what has no rows yet.

    Example:  python -m lab run 13 --seed 0 --seed 1 --data-dir data

    Writes runs below --runs and compact rows below --results. Called again, it goes on where it was. `python -m lab
    tables` then shows the rows; `python -m lab fill` writes them into the pages.
    """
    from lab.queue import Setting, jobs_of, recipes_of, run_jobs

    setting = Setting(runs=runs, results=results, device=usable_device(device), data_dir=data_dir, together=together)
    recipes = recipes_of(what)
    jobs = jobs_of(recipes, seeds or [0], setting)
    typer.echo(f"{len(recipes)} recipes, {len(jobs)} runs without rows")
    if dry:
        for job in jobs:
            typer.echo(f"missing  {job.name}")
        return
    failed = run_jobs(jobs, setting, typer.echo)
    if failed:
        raise BronetError(
            f"{len(failed)} of {len(jobs)} runs failed, the first was {failed[0].name}; run again to go on"
        )


@app.command()
def walk(
    command: Annotated[str, typer.Argument(metavar="train|certify", help="The command to follow.", show_default=False)],
) -> None:
    """Count the files of bronet in which a function runs.

    Example:  python -m lab walk certify

    Trains the quick start's network for an epoch, or certifies it, in a temporary folder. Writes nothing else.
    """
    from lab.walk import walk as follow

    files = follow(command)
    for file, calls in sorted(files.items()):
        typer.echo(f"{calls:9,}  {file}")
    typer.echo(f"{len(files)} files")


@app.command()
def tuning(
    base: Annotated[Path, typer.Argument(metavar="BASE", help="The run that the others are compared with.")],
    runs: Annotated[list[Path] | None, typer.Argument(metavar="RUN", show_default=False)] = None,
    *,
    out: Annotated[Path, out_option("The log: a CSV file, compressed if it ends in .xz.", file=True)],
) -> None:
    """Log what tuning runs changed, and what they gave.

    Example:  python -m lab tuning runs/base runs/slow --out tuning.csv

    Shares are of held-out training images. Lines of other runs stay, and so do the verdicts, which a person writes.
    """
    from lab.tables.tuning import collect, read_tuning, write_tuning

    rows = collect(base, runs or [], read_tuning(out))
    write_tuning(out, rows)
    typer.echo(f"wrote    {out}: {len(rows)} runs")


def _paper_table(number: int) -> "Table":
    """Return the rows of a table of the paper; rows that it quotes have no recipe."""
    from rich.table import Table
    from rich.text import Text

    from lab.tables.published import paper_rows

    rows = paper_rows(number)
    others = any(row.others for row in rows)
    table = Table(box=None, pad_edge=False)
    for heading in ("row", "data"):
        table.add_column(heading, no_wrap=True)
    for heading in ("clean", "36/255", "72/255", "108/255"):
        table.add_column(heading, justify="right", no_wrap=True)
    for heading in ("others", "recipe") if others else ("recipe",):
        table.add_column(heading, no_wrap=True)
    for row in rows:
        accuracies = ("-" if value is None else f"{value:g}" for value in (row.clean, *row.certified))
        more = (", ".join(f"{key} {value:g}" for key, value in row.others.items()),) if others else ()
        table.add_row(*(Text(cell) for cell in (row.row, row.group, *accuracies, *more, row.recipe or "-")))
    return table

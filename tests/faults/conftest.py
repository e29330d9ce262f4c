"""Rows of the table of docs/reliability.md: what was tried, how often, and what was lost.

`make faults` runs the long tests, prints a line for each row, and fills the page.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from forks import Server, forking
from ledger import Tell
from tiny_run import train_tiny_run

ROW = "fault row"
PAGE_VARIABLE = "BRONET_FAULTS_PAGE"
BEGIN, END = "<!-- faults: begin -->", "<!-- faults: end -->"
HEADING = "| what was done | how often | lost |\n|---|---:|---:|\n"

rows: dict[str, tuple[int, int]] = {}


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The real command line, ready to start."""
    with forking(tmp_path_factory.mktemp("outputs")) as found:
        yield found


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of a moment; tests copy it."""
    return train_tiny_run(tmp_path_factory.mktemp("trained") / "run")


@pytest.fixture
def row(record_property: Callable[[str, object], None]) -> Tell:
    """Record a row: what was done, how often, and a line for each thing that was lost; nothing may be."""

    def tell(what: str, tried: int, lost: Sequence[str]) -> None:
        record_property(ROW, [what, tried, len(lost)])
        assert not lost, "\n".join(lost[:10])

    return tell


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Collect the rows where the results of all processes arrive."""
    for name, value in report.user_properties if report.when == "call" else ():
        if name == ROW:
            what, tried, lost = value  # type: ignore[misc]
            rows[what] = (tried, lost)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print a line for each row; where a page is named, put the table into it."""
    if PAGE_VARIABLE not in os.environ:
        return
    for what, (tried, lost) in sorted(rows.items()):
        terminalreporter.write_line(f"{tried:>7,} tried, {lost} lost: {what}")
    page = Path(os.environ[PAGE_VARIABLE])
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    table = HEADING + "".join(f"| {what} | {tried:,} | {lost} |\n" for what, (tried, lost) in sorted(rows.items()))
    page.write_text(f"{before}{BEGIN}\n{table}{END}{rest.partition(END)[2]}", encoding="utf-8")

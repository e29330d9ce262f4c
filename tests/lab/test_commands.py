"""`python -m lab`: its pages of help, its list of recipes, and what it refuses."""

import pytest
from typer.testing import CliRunner

from bronet.cli import ExitStatus
from bronet.recipe import from_text
from lab.commands import app
from lab.recipes import ablations, sweeps, table_recipe

terminal = CliRunner()


@pytest.mark.parametrize("group", [(), ("analyze",), ("bench",)], ids=" ".join)
def test_no_summary_of_a_command_is_cut_at_80_columns(group: tuple[str, ...]) -> None:
    shown = terminal.invoke(app, [*group, "--help"], env={"COLUMNS": "80"})
    assert shown.exit_code == 0
    commands = shown.stdout.partition("Commands:\n")[2].splitlines()
    assert [line for line in commands if not line.endswith(".") or line.endswith("...")] == []


def test_the_list_names_what_bronet_does_not_train_by_name() -> None:
    assert terminal.invoke(app, ["recipes"]).stdout.split() == [*ablations(), *sweeps()]
    name = "cifar100/la-beta"
    members = terminal.invoke(app, ["recipes", name]).stdout.split()
    assert members == [member.name for member in sweeps()[name].members()]
    for shown in (members[0], "cifar10/liresnet", "cifar10/bronet-m"):
        assert from_text(terminal.invoke(app, ["recipes", shown]).stdout) == table_recipe(shown)


def test_a_table_of_the_paper_is_whole_in_a_narrow_terminal() -> None:
    shown = terminal.invoke(
        app, ["recipes", "--table", "12"], env={"COLUMNS": "80", "FORCE_COLOR": "1", "NO_COLOR": "1"}
    )
    assert shown.exit_code == 0
    assert "cifar100/rank-l6w512d4@model.rank=3/4" in shown.stdout
    assert "minutes_per_epoch 3.75" in shown.stdout
    assert "\N{HORIZONTAL ELLIPSIS}" not in shown.stdout


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["recipes", "cifar10/liresnett"], "did you mean 'cifar10/liresnet'"),
        (["recipes", "x", "--table", "1"], "got x"),
    ],
)
def test_a_mistake_is_one_line(words: list[str], told: str) -> None:
    result = terminal.invoke(app, words)
    assert result.exit_code == ExitStatus.USER_ERROR
    assert told in result.stderr
    assert len(result.stderr.splitlines()) == 1

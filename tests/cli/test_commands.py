"""The command line before any computing: help, refusals in one line, exit statuses, lists."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from bronet.__about__ import __version__
from bronet.cli import ExitStatus, app
from bronet.pretrained import find_network
from bronet.pretrained.places import package_home, pretrained_names, published_networks
from bronet.recipe import from_text, named_recipe, override, recipe_names, to_text
from tiny_run import train_tiny_run

COMMANDS = (
    *("quickstart", "train", "certify", "report", "verify", "attack", "serve", "export", "recipes"),
    *("check", "bench", "info"),
)
HELP_SECONDS = 0.5
HEAVY = ("torch", "numpy", "matplotlib", "yaml", "bronet.recipe", "bronet.data")
QUICK = "digits/quickstart"
SCREEN_LINES = 40

run = CliRunner()


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Default folders such as runs and datasets lie below the current one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("BRONET_DATA", raising=False)
    return tmp_path


def refusal(*words: str) -> str:
    """Run a command that must be refused; return its one line on stderr."""
    result = run.invoke(app, words, prog_name="bronet")
    assert result.exit_code == ExitStatus.USER_ERROR
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ")
    return line


def test_the_command_line_loads_nothing_heavy() -> None:
    code = f"import sys, bronet.cli; print([name for name in {HEAVY} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_help_takes_less_than_half_a_second_of_computing() -> None:
    before = os.times()
    subprocess.run([sys.executable, "-m", "bronet", "--help"], capture_output=True, check=True)
    after = os.times()
    # Seconds of the processor, so that a busy machine does not fail the test.
    seconds = after.children_user + after.children_system - before.children_user - before.children_system
    assert seconds < HELP_SECONDS


def test_help_of_the_program_names_every_command_on_one_screen() -> None:
    shown = run.invoke(app, ["--help"], env={"COLUMNS": "80"})
    assert shown.exit_code == 0
    assert len(shown.stdout.splitlines()) <= SCREEN_LINES
    assert {line.split()[0] for line in shown.stdout.partition("Commands:\n")[2].splitlines()} >= set(COMMANDS)


@pytest.mark.parametrize("group", [(), ("recipes",), ("data",)], ids=" ".join)
def test_no_summary_of_a_command_is_cut_at_80_columns(group: tuple[str, ...]) -> None:
    shown = run.invoke(app, [*group, "--help"], env={"COLUMNS": "80"})
    assert shown.exit_code == 0
    assert [line for line in shown.stdout.partition("Commands:\n")[2].splitlines() if not line.endswith(".")] == []
    assert "..." not in shown.stdout.partition("Commands:\n")[2]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command_gives_an_example_and_what_it_writes(command: str) -> None:
    shown = run.invoke(app, [command, "--help"])
    assert shown.exit_code == 0
    assert f"Example:  bronet {command}" in shown.stdout
    assert "writes" in shown.stdout.lower()


@pytest.mark.parametrize("command", COMMANDS)
def test_an_unknown_option_is_refused(command: str) -> None:
    result = run.invoke(app, [command, "--sed", "3"])
    assert result.exit_code == ExitStatus.USER_ERROR
    assert "--sed" in result.stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ["certify", "--limit", "-1"],
            "--limit must be greater than or equal to 1, got '-1'; see bronet certify --help",
        ),
        (["train", QUICK, "--seed", "nan"], "--seed must be a valid integer, got 'nan'; see bronet train --help"),
        (["attack", "run", "--norm", "l3"], "--norm: 'l3' is not one of 'l2', 'linf'; see bronet attack --help"),
        (["check"], "missing argument 'RUN'; see bronet check --help"),
        (["data"], "missing command; see bronet data --help"),
        (["recipes", "nope"], "no such command 'nope'; see bronet recipes --help"),
        (["nope"], "no such command 'nope'; see bronet --help"),
        (["--nope"], "no such option: --nope; see bronet --help"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_command_line_that_cannot_be_read_is_one_line(words: list[str], told: str) -> None:
    assert refusal(*words) == f"error: {told}"


def test_the_program_without_a_command_shows_its_help() -> None:
    shown = run.invoke(app, [])
    assert "Commands:" in shown.output
    assert "error" not in shown.output


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB\nmore"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
    ],
    ids=["python", "gpu", "cpu"],
)
def test_too_little_memory_is_one_line_and_other_faults_are_not(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise raised

    raised: Exception = error
    monkeypatch.setattr("bronet.pretrained.find_network", fails)
    told = refusal("info", "run")
    assert told.startswith("error: there is not enough memory (")
    assert told.endswith("); take fewer images at once or a smaller network")
    raised = RuntimeError("a fault of this program")
    assert run.invoke(app, ["info", "run"]).exception is raised


def test_a_terminal_is_shown_what_it_would_obey() -> None:
    told = refusal("info", "\x1b[2J\u202ename\a")
    assert r"\x1b[2J\u202ename\x07" in told
    assert told.isprintable()


def test_version_is_that_of_the_package() -> None:
    assert run.invoke(app, ["--version"]).stdout == f"bronet {__version__}\n"


def test_an_unknown_recipe_names_the_nearest() -> None:
    assert "did you mean 'digits/quickstart'?" in refusal("train", "digits/quikstart")
    assert "did you mean 'cifar10/bronet-m'?" in refusal("recipes", "show", "cifar10/bronet_m")


@pytest.mark.parametrize("command", ["certify", "info"])
def test_a_folder_without_a_run_is_one_line(command: str, empty_folder: Path) -> None:
    assert "nowhere must be a run's folder" in refusal(command, "nowhere")
    assert list(empty_folder.iterdir()) == []


def test_reporting_what_is_not_certified_is_one_line() -> None:
    assert "nowhere must be a run's folder" in refusal("report", "nowhere")


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("train.epoch=3", "did you mean train.epochs?"),
        ("train.epochs=0", "train.epochs must be at least 1, got 0"),
        ("train.epochs", "a setting must be written key=value"),
        ("model.rank=1", "0 < n/m < 1"),
    ],
)
def test_a_wrong_setting_is_one_line_and_writes_nothing(setting: str, words: str, empty_folder: Path) -> None:
    assert words in refusal("train", QUICK, "--set", setting)
    assert list(empty_folder.iterdir()) == []


def test_a_missing_data_folder_is_one_line_and_writes_nothing(empty_folder: Path) -> None:
    assert "cifar10 must be in" in refusal("train", "cifar10/bronet-small", "--data-dir", "elsewhere")
    assert list(empty_folder.iterdir()) == []


def test_resuming_what_was_never_begun_is_one_line() -> None:
    assert "must be a run's folder" in refusal("train", QUICK, "--resume")


def test_resuming_and_overwriting_exclude_each_other() -> None:
    assert "exclude each other" in refusal("train", QUICK, "--resume", "--overwrite")


def test_a_folder_is_no_recipe_unless_it_is_resumed(empty_folder: Path) -> None:
    assert "add --resume" in refusal("train", str(empty_folder))


def test_an_unreadable_recipe_file_is_one_line(empty_folder: Path) -> None:
    assert "the recipe mine.yaml" in refusal("train", "mine.yaml")
    (empty_folder / "mine.yaml").write_bytes(b"\xff\xfe")
    assert "the recipe mine.yaml" in refusal("train", "mine.yaml")
    (empty_folder / "mine.yaml").write_text("")
    assert re.fullmatch(r"error: in mine\.yaml: .*, got None", refusal("train", "mine.yaml"))
    (empty_folder / "recipe.yaml").write_text("")
    assert re.fullmatch(r"error: in recipe\.yaml: .*, got None", refusal("info", "."))


@pytest.mark.parametrize("radius", ["abc", "-1", "nan", "1/0", "1e3"])
def test_a_radius_that_is_no_number_is_refused(radius: str, empty_folder: Path) -> None:
    (empty_folder / "recipe.yaml").write_text(to_text(named_recipe(QUICK)))
    assert refusal("certify", ".", "--eps", radius).startswith("error: --eps must")


@pytest.mark.parametrize("command", ["certify", "attack"])
def test_a_radius_in_levels_of_255_is_refused_with_its_unit(command: str, empty_folder: Path) -> None:
    (empty_folder / "recipe.yaml").write_text(to_text(named_recipe(QUICK)))
    told = refusal(command, ".", "--eps", "36")
    assert all(word in told for word in ("--eps", "got 36;", "36/255", "[0, 1]")), told
    assert "model.safetensors" in refusal(
        command, ".", "--eps", "36/1", *(["--attack", "pgd"] if command == "attack" else [])
    )


@pytest.mark.parametrize("name", recipe_names())
def test_a_shown_recipe_reads_back_as_itself(name: str) -> None:
    assert from_text(run.invoke(app, ["recipes", "show", name]).stdout) == named_recipe(name)


def test_the_list_of_recipes_counts_parameters_and_names_what_was_trained(empty_folder: Path) -> None:
    shutil.copytree(package_home() / "bronet-digits" / "digits", "runs/no-run")
    train_tiny_run(empty_folder / "runs" / "mine")
    (empty_folder / "runs" / "broken").mkdir()
    (empty_folder / "runs" / "broken" / "recipe.yaml").write_text("{")
    lines = {line.split()[0]: line for line in run.invoke(app, ["recipes"]).stdout.splitlines()[1:] if line}
    assert {name for name in lines if "/" in name} == set(recipe_names())
    assert lines["cifar10/bronet-m"].split() == ["cifar10/bronet-m", "36,544,522", "800", "256"]
    quick = lines[QUICK].split("  ")[-1].split("; ")
    assert quick[0] == "bronet-digits/digits, 49.4 s on x86_64 CPU"
    assert quick[1].startswith("runs/mine, ")
    assert len(quick) == 2


def test_a_network_that_is_not_here_stands_beside_its_recipe(
    monkeypatch: pytest.MonkeyPatch, empty_folder: Path
) -> None:
    of_recipe = {name: find_network(name).recipe.name for name in pretrained_names()}
    monkeypatch.setenv("BRONET_HOME", str(empty_folder / "home"))
    monkeypatch.setattr("bronet.pretrained.places.checkout_home", lambda: None)  # as of an installed package
    lines = {line.split()[0]: line for line in run.invoke(app, ["recipes"]).stdout.splitlines()[1:] if line}
    for network in published_networks():
        assert lines[of_recipe[network.name]].endswith(f"{network.name}, not on this machine")


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_a_shell_completes_commands_and_recipes(shell: str) -> None:
    def completed(*words: str) -> str:
        environment = os.environ | {
            "_BRONET_COMPLETE": f"complete_{shell}", "COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1),
            "_TYPER_COMPLETE_ARGS": " ".join(words),
        }  # fmt: skip
        command = [sys.executable, "-m", "bronet"]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False).stdout

    assert "quickstart" in completed("bronet", "qui")
    assert "cifar10/bronet-m-fast" in completed("bronet", "train", "cifar10/bronet-m")
    assert "cifar10/bronet-l" not in completed("bronet", "train", "cifar10/bronet-m")


@pytest.mark.parametrize("words", [("train", QUICK), ("bench", QUICK), ("serve", "bronet-digits/digits")])
def test_apples_gpus_are_refused_with_the_reason(words: tuple[str, ...], empty_folder: Path) -> None:
    assert "float64" in refusal(*words, "--device", "mps")
    assert list(empty_folder.iterdir()) == []


def test_info_tells_versions_and_data(empty_folder: Path) -> None:
    (empty_folder / "cifar-100-binary").mkdir()
    facts = dict(line.split(maxsplit=1) for line in run.invoke(app, ["info", "--data-dir", "."]).stdout.splitlines())
    assert facts["bronet"].strip() == __version__
    assert facts["cifar100"].strip() == "cifar-100-binary"
    assert facts["cifar10"].startswith("not found")


def test_info_tells_apart_the_networks_that_are_here_and_those_that_are_not(
    monkeypatch: pytest.MonkeyPatch, empty_folder: Path
) -> None:
    monkeypatch.setenv("BRONET_HOME", str(empty_folder / "home"))
    monkeypatch.setattr("bronet.pretrained.places.checkout_home", lambda: None)  # as of an installed package
    absent = [network.name for network in published_networks()]
    shown = "".join(run.invoke(app, ["info"]).stdout.split())  # a long line is folded
    here, *elsewhere = shown.partition("pretrained")[2].partition("digitsbuiltin")[0].split("notonthismachine")
    assert "bronet-digits/digits" in here
    assert absent
    assert [name for name in absent if name in here] == []
    for name, told in zip(absent, elsewhere, strict=True):
        assert f"{empty_folder}/home/{name}" in told


@pytest.mark.parametrize("words", [["recipes", "show", QUICK], ["--version"], ["--help"]], ids=str)
@pytest.mark.parametrize("unbuffered", ["", "1"])  # where it is set, nothing is left to be written at the end
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_one_line(unbuffered: str, words: list[str]) -> None:
    command = [sys.executable, "-m", "bronet", *words]
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with Path("/dev/full").open("w") as full:
        result = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, env=environment)
    assert result.returncode == ExitStatus.USER_ERROR
    assert result.stderr == "error: the system refused: No space left on device\n"


def test_quickstart_does_not_replace_another_run(empty_folder: Path) -> None:
    recipe = empty_folder / "recipe.yaml"
    recipe.write_text(to_text(override(named_recipe(QUICK), ["name=months of work"])))
    before = recipe.read_text()
    assert "months of work" in refusal("quickstart", "--out", ".")
    assert recipe.read_text() == before


def test_a_place_that_cannot_be_written_is_refused_before_the_work(empty_folder: Path) -> None:
    Path("file").touch()
    for words in (("train", QUICK), ("report", "none"), ("export", "none"), ("certify", "none")):
        assert "file" in refusal(*words, "--out", "file/below")
    assert [path.name for path in Path().iterdir()] == ["file"]

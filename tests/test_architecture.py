"""The house rules that a program can check: who may import whom, and how files are kept."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "bronet"
LAB = ROOT / "lab"
FILES = sorted(SOURCE.rglob("*.py"))
LAB_FILES = sorted(LAB.rglob("*.py"))
MOST_LINES = 350
FRONT = frozenset({"__init__", "__main__", "__about__"})
"""The package's own face: the version, the lazy names and `python -m bronet`. It belongs to no room."""
NO_TORCH = ("errors", "recipe")
VAGUE_NAMES = frozenset({"utils.py", "util.py", "misc.py", "helpers.py", "common.py"})
EVERYTHING_ABOVE = frozenset({"all above", "all"})
TABLE_LINE = re.compile(r"\| (?P<rooms>`\w+`(?:, `\w+`)*) \|[^|]*\| (?P<allowed>[^|]*) \|")


class Import(NamedTuple):
    """One name imported somewhere in a file."""

    file: Path
    line: int
    module: str


def stated_rules() -> dict[str, set[str]]:
    """Return which rooms each room may import, as the table of docs/architecture.md says.

    What a room may import, the rooms that import it may use too: the table names the nearest rooms only.
    """
    rules: dict[str, set[str]] = {}
    for match in TABLE_LINE.finditer((ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")):
        named = set(re.findall(r"`(\w+)`", match["allowed"]))
        if match["allowed"].strip() in EVERYTHING_ABOVE:
            named = set(rules)
        allowed = named.union(*(rules[room] for room in named))
        rooms = re.findall(r"`(\w+)`", match["rooms"])
        rules |= {room: allowed | {room} for room in rooms}
    return rules


def room_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports(path: Path) -> Iterator[Import]:
    """Yield every import of a file, those inside functions too, those for type checkers only not."""
    waiting: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            yield from (Import(path, node.lineno, name.name) for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are written in full"
            assert node.module is not None
            if node.module == "bronet":
                yield from (Import(path, node.lineno, f"bronet.{name.name}") for name in node.names)
            else:
                yield Import(path, node.lineno, node.module)
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            waiting += node.orelse
        else:
            waiting += ast.iter_child_nodes(node)


def test_imports_only_go_down_the_table_of_the_architecture() -> None:
    rules = stated_rules()
    rooms = {room_of(path) for path in FILES} - FRONT
    assert rooms <= rules.keys()
    wrong = []
    for path in FILES:
        room = room_of(path)
        if room in FRONT:
            continue
        for entry in imports(path):
            package, _, rest = entry.module.partition(".")
            target = rest.partition(".")[0]
            if package == "bronet" and target not in rules[room] | FRONT:
                wrong.append(f"{path.relative_to(SOURCE)}:{entry.line} imports {entry.module}")
    assert wrong == []


def test_the_rules_forbid_something() -> None:
    rules = stated_rules()
    assert "training" not in rules["layers"]
    assert "cli" not in rules["report"]
    assert rules["errors"] == {"errors"}


def test_imports_inside_functions_count_and_those_for_type_checkers_do_not(tmp_path: Path) -> None:
    file = tmp_path / "file.py"
    file.write_text(
        "if TYPE_CHECKING:\n    import torch\ndef f():\n    from bronet import training\n    import bronet.data\n"
    )
    assert {entry.module for entry in imports(file)} == {"bronet.training", "bronet.data"}


def test_a_report_reads_rows_and_images_but_no_weights() -> None:
    found = {entry.module for path in FILES if room_of(path) == "report" for entry in imports(path)}
    rooms = {module.split(".")[1] for module in found if module.startswith("bronet.")}
    assert rooms <= {"data", "errors", "files", "radius", "recipe", "records", "report", "run", "wording"}
    of_a_run = {module.removeprefix("bronet.run.") for module in found if module.startswith("bronet.run.")}
    assert of_a_run == {"attack_rows", "certificate", "folder"}


def test_tests_mirror_the_rooms() -> None:
    rooms = {room_of(path) for path in FILES}
    elsewhere = {"docs", "faults", "gpu", "hostile", "helpers", "lab", "published"}
    for path in sorted((ROOT / "tests").iterdir()):
        if path.is_dir() and any(path.glob("*.py")):
            assert path.name in rooms | elsewhere, path
        elif path.name.startswith("test_"):
            assert path.stem.removeprefix("test_") in rooms | {"architecture"}, path


def test_bronet_never_imports_its_laboratory() -> None:
    packages = {entry.module.partition(".")[0] for path in FILES for entry in imports(path)}
    assert "bronet" in packages
    assert packages.isdisjoint({"lab", "tests"})


def test_only_the_commands_of_the_laboratory_import_commands() -> None:
    for path in LAB_FILES:
        modules = {entry.module for entry in imports(path)}
        if not path.name.endswith(("commands.py", "__main__.py", "walk.py")):
            assert not any(module.startswith("bronet.cli") or "commands" in module for module in modules), path


@pytest.mark.parametrize("room", NO_TORCH)
def test_a_description_knows_no_tensors(room: str) -> None:
    found = {entry.module.partition(".")[0] for path in FILES if room_of(path) == room for entry in imports(path)}
    assert found.isdisjoint({"torch", "numpy", "jaxtyping", "safetensors"})


@pytest.mark.parametrize("path", [*FILES, *LAB_FILES], ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_says_what_it_is_and_stays_short(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert ast.get_docstring(ast.parse(text))
    assert len(text.splitlines()) <= MOST_LINES
    assert path.name not in VAGUE_NAMES


def test_public_names_are_unique_and_no_rooms() -> None:
    named: dict[str, list[str]] = {room_of(path): ["a room"] for path in FILES}
    for path in FILES:
        if room_of(path) not in {"cli", "__main__"}:  # a command is called like the function that it calls
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and not node.name.startswith("_"):
                    named.setdefault(node.name, []).append(str(path.relative_to(SOURCE)))
    assert {name: places for name, places in named.items() if len(places) > 1} == {}


def test_there_is_one_training_loop() -> None:
    """A step of an optimiser or a backward pass within a loop would be another one."""
    loops, calls = (ast.For, ast.While, ast.ListComp, ast.GeneratorExp), {"step", "backward"}
    found = {
        str(path.relative_to(ROOT))
        for path in (*FILES, *(ROOT / "lab").rglob("*.py"))
        for loop in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(loop, loops)
        for call in ast.walk(loop)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in calls
    }
    assert found == {"src/bronet/training/loop.py"}

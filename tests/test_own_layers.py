"""The registry is open to layers of one's own, and refuses in one line (examples/test_own_layer.py has the layer)."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bronet.cli import app
from bronet.errors import BronetError
from bronet.layers import CONVOLUTIONS, Kind, convolution, register_convolution
from bronet.models import build_model
from bronet.recipe import convolution_kind, dataset_spec, named_recipe, override
from bronet.recipe.architecture import BRONetArchitecture, LipConvNetArchitecture, StackArchitecture


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Forget what a test registers."""
    monkeypatch.setattr(convolution_kind, "_own", [])
    before = dict(CONVOLUTIONS)
    yield
    CONVOLUTIONS.clear()
    CONVOLUTIONS.update(before)


@pytest.mark.usefixtures("registry")
def test_a_registered_word_is_read_by_recipes_and_built_by_models() -> None:
    recipe = named_recipe("digits/quickstart")
    with pytest.raises(BronetError, match=r"backbone must be one of bro, .* got 'mine'; .*bronet --layers FILE"):
        override(recipe, ["model.backbone=mine"])
    asked = []
    register_convolution("mine", Kind(lambda r: asked.append(r) or convolution("aol", r.in_channels, r.out_channels)))
    model = override(recipe, ["model.backbone=mine", "model.width=4", "model.depth=2"]).model
    build_model(model, dataset_spec("digits"))
    assert [(r.in_channels, r.out_channels, r.input_size) for r in asked] == [(4, 4, (8, 8))] * 2


@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize("name", ["bro", "mine"])
def test_a_taken_name_is_refused_and_keeps_its_layer(name: str) -> None:
    register_convolution("mine", CONVOLUTIONS["soc"])
    kept = CONVOLUTIONS[name]
    with pytest.raises(BronetError, match=f"must be new, but '{name}' is registered already"):
        register_convolution(name, CONVOLUTIONS["aol"])
    assert CONVOLUTIONS[name] is kept


@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize("name", ["", "Mine", "my layer", "a=b", "x" * 40])
def test_a_name_is_a_short_word(name: str) -> None:
    with pytest.raises(BronetError, match="must be a short word"):
        register_convolution(name, CONVOLUTIONS["aol"])


@pytest.mark.parametrize(
    "build",
    [
        lambda: BRONetArchitecture(backbone="sox"),
        lambda: LipConvNetArchitecture(backbone="sox"),
        lambda: StackArchitecture(layer="sox", widths=(), kernels=(), strides=()),
    ],
)
def test_every_architecture_refuses_an_unknown_word(build: object) -> None:
    with pytest.raises(BronetError, match="must be one of bro, soc"):
        build()  # type: ignore[operator]


@pytest.mark.usefixtures("registry")
def test_layers_of_a_file_are_known_to_the_command(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from bronet.layers import CONVOLUTIONS, register_convolution\n"
        "register_convolution('mine', CONVOLUTIONS['aol'])\n"
    )
    options = ["--set", "model.backbone=mine", "--set", "data.name=nowhere", "--out", str(tmp_path / "run")]
    result = CliRunner().invoke(app, ["--layers", str(file), "train", "digits/quickstart", *options])
    assert "dataset must be one of" in result.output  # the backbone was read, the data set was not
    assert "mine" in CONVOLUTIONS


def test_a_file_with_the_name_of_a_module_does_not_hide_it(tmp_path: Path) -> None:
    file = tmp_path / "bronet.py"
    file.write_text("")
    before = sys.modules["bronet"]
    assert CliRunner().invoke(app, ["--layers", str(file), "recipes"]).exit_code == 0
    assert sys.modules["bronet"] is before


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import math\n\n1 / 0\n", "must run, but failed in line 3: ZeroDivisionError: division by zero"),
        ("def broken(:\n", "must run, but failed: SyntaxError"),
        (None, "--layers must be a Python file that registers layers, got"),
    ],
)
def test_a_file_that_does_not_run_is_one_line_and_status_two(tmp_path: Path, text: str | None, words: str) -> None:
    file = tmp_path / "broken_layers.py"
    if text is not None:
        file.write_text(text)
    result = CliRunner().invoke(app, ["--layers", str(file), "recipes"])
    assert result.exit_code == 2
    assert words in result.output
    assert len(result.output.strip().splitlines()) == 1

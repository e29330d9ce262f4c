"""The registry is open to layers of one's own, and refuses in one line (examples/test_own_layer.py has the layer)."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import jaxtyping
import pytest
from typer.testing import CliRunner

from bronet.cli import app
from bronet.errors import BronetError
from bronet.layers import CONVOLUTIONS, Convolution, LipschitzLayer, register_convolution
from bronet.layers.rivals.spatial import AOLConv2d
from bronet.models import build_model
from bronet.recipe import dataset_spec, named_recipe, override
from bronet.recipe.architecture import Architecture, BRONetArchitecture, LipConvNetArchitecture, StackArchitecture


@pytest.fixture
def registry() -> Iterator[None]:
    """Forget what a test registers."""
    before = dict(CONVOLUTIONS)
    yield
    CONVOLUTIONS.clear()
    CONVOLUTIONS.update(before)


@pytest.mark.usefixtures("registry")
def test_a_registered_word_is_built_by_models_with_the_options_that_it_names() -> None:
    model = override(named_recipe("digits/quickstart"), ["model.backbone=mine", "model.width=4", "model.depth=2"]).model
    with pytest.raises(BronetError, match=r"must be one of bro, .* got 'mine'; .*bronet --layers FILE"):
        build_model(model, dataset_spec("digits"))

    class Mine(AOLConv2d):
        pass

    register_convolution("mine", Mine)
    network = build_model(model, dataset_spec("digits"))
    layers = [layer for layer in network.modules() if isinstance(layer, Mine)]
    assert [(layer.in_channels, layer.out_channels, layer.input_size) for layer in layers] == [(4, 4, (8, 8))] * 2


@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize("kind", [LipschitzLayer, "soc", lambda: AOLConv2d(1, 1)])
def test_only_a_class_of_convolutions_is_registered(kind: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(BronetError, match=r"must be a class derived from bronet\.layers\.Convolution"):
        register_convolution("mine", kind)  # type: ignore[arg-type]
    assert issubclass(CONVOLUTIONS["bro"], Convolution)


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


@pytest.mark.parametrize("word", ["", "Sox", "a layer", "x" * 40, "../sox"])
@pytest.mark.parametrize(
    "build",
    [
        lambda word: BRONetArchitecture(backbone=word),
        lambda word: LipConvNetArchitecture(backbone=word),
        lambda word: StackArchitecture(layer=word, widths=(), kernels=(), strides=()),
    ],
)
def test_every_architecture_checks_the_spelling_of_its_word(build: Callable[[str], object], word: str) -> None:
    with pytest.raises(BronetError, match="must be a short word"):
        build(word)


@pytest.mark.parametrize(
    "architecture",
    [
        BRONetArchitecture(backbone="sox"),
        LipConvNetArchitecture(backbone="sox"),
        StackArchitecture(layer="sox", widths=(8,), kernels=(3,), strides=(1,)),
    ],
)
def test_every_network_refuses_an_unknown_word(architecture: Architecture) -> None:
    with pytest.raises(BronetError, match=r"must be one of bro, soc, .* got 'sox'"):
        build_model(architecture, dataset_spec("cifar10"), device="meta")


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

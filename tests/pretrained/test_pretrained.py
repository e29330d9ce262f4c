"""Pretrained networks: what is loaded is what was saved, and a folder that lies is refused in one line."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

import bronet
from bronet import BronetError
from bronet.certificates.run import certify_run
from bronet.certificates.verify import verify_run
from bronet.models.lipconvnet import LipConvNet
from bronet.pretrained import find_network, load_pretrained, pretrained_names, save_pretrained, unpack
from bronet.pretrained.places import (
    HOME_VARIABLE,
    PublishedFile,
    PublishedNetwork,
    checkout_home,
    named_folder,
    package_home,
    packaged_names,
    published_folder,
    published_networks,
    user_home,
)
from bronet.recipe import override
from bronet.run.certificate import file_hash, read_certificate_rows
from bronet.run.folder import open_run
from bronet.run.weights import load_model, trained_model
from lab.packed import unpacked
from served_files import serving_files
from tiny_run import train_tiny_run

DIGITS = "bronet-digits/digits"
ROOT = Path(__file__).parents[2]
MEGABYTES = 6
ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_tiny_run(tmp_path_factory.mktemp("pretrained") / "run")


@pytest.fixture(scope="module")
def saved(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_pretrained(run, tmp_path_factory.mktemp("pretrained") / "saved")


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    return shutil.copytree(saved, tmp_path / "folder")


def test_a_saved_network_is_the_runs_network_rounded_to_bf16(run: Path, saved: Path) -> None:
    trained = load_model(open_run(run)).state_dict()
    loaded = load_pretrained(saved).state_dict()
    assert loaded.keys() == trained.keys()
    for name, tensor in trained.items():
        expected = tensor.bfloat16().float() if tensor.ndim > 1 else tensor
        assert torch.equal(loaded[name], expected), name
    assert not load_pretrained(saved).training


def test_saving_twice_gives_the_same_bytes_and_rounding_is_idempotent(run: Path, saved: Path, tmp_path: Path) -> None:
    rounded = unpack(find_network(saved), tmp_path / "rounded")
    again = save_pretrained(rounded.path, tmp_path / "again")
    assert {path.name for path in again.iterdir()} == {"config.json", "model.safetensors"}
    assert (again / "model.safetensors").read_bytes() == (saved / "model.safetensors").read_bytes()


def _json(change: Callable[[dict[str, object]], object]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        change(config)
        (folder / "config.json").write_text(json.dumps(config))

    return apply


def _weights(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], None]:
    """Change the tensors, and let the configuration name the new file: a liar would."""

    def apply(folder: Path) -> None:
        path = folder / "model.safetensors"
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata()
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        change(tensors)
        save_file(tensors, path, metadata=metadata)
        _json(lambda config: config.update(weights_sha256=file_hash(path)))(folder)

    return apply


def _text(name: str, content: bytes) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        (folder / name).write_bytes(content)
        if name == "model.safetensors":
            _json(lambda config: config.update(weights_sha256=file_hash(folder / name)))(folder)

    return apply


def _deeper(config: dict[str, object]) -> None:
    config["recipe"]["model"]["depth"] = 10**9  # type: ignore[index]


HOSTILE = {
    "no JSON": (_text("config.json", b"{"), "must be JSON"),
    "nested": (_text("config.json", b"[" * 100_000), "must be JSON"),
    "a list": (_text("config.json", b"[]"), "must hold a JSON object"),
    "no text": (_text("config.json", b"\xff\xfe"), "cannot read"),
    "too long": (_text("config.json", b" " * (1 << 21)), "at most 1048576 bytes"),
    "version": (_json(lambda config: config.update(version=2)), "version 1, got 'bronet' version 2"),
    "format": (_json(lambda config: config.pop("format")), "must be of the format 'bronet'"),
    "key": (_json(lambda config: config["recipe"].update(run="rm")), "unknown configuration key recipe.run"),  # type: ignore[attr-defined]
    "recipe": (_json(lambda config: config.update(recipe=3)), "must be a table of settings"),
    "classes": (_json(lambda config: config.update(classes=["a"])), "classes must be the 10 names"),
    "class kinds": (_json(lambda config: config.update(classes=[1] * 10)), "classes[0] must be text, got 1"),
    "no data set": (_json(lambda config: config.update(dataset={})), "dataset.name is missing"),
    "data set": (
        _json(lambda config: config["dataset"].update(height=9)),  # type: ignore[attr-defined]
        "must describe the recipe's data set",
    ),
    "hash": (_json(lambda config: config.update(weights_sha256="0")), "its bytes differ"),
    "depth": (_json(_deeper), "model.depth"),
    "missing": (_weights(lambda tensors: tensors.pop("head.bias")), "lacks 1 tensors"),
    "extra": (_weights(lambda tensors: tensors.update(more=torch.zeros(1))), "tensors that do not belong there"),
    "shape": (_weights(lambda tensors: tensors.update({"head.bias": torch.zeros(3)})), "must have shape"),
    "integers": (
        _weights(lambda tensors: tensors.update({"head.bias": torch.zeros(10, dtype=torch.int64)})),
        "must hold torch.float32 numbers",
    ),
    "NaN": (_weights(lambda tensors: tensors["head.bias"].fill_(torch.nan)), "must be finite"),
    "NaN in 8 bits": (
        _weights(lambda tensors: tensors.update({"head.bias": torch.full((10,), torch.nan).to(torch.float8_e4m3fn)})),
        "must be finite",
    ),
    "too large": (
        _weights(lambda tensors: tensors.update({"head.bias": torch.full((10,), 1e300, dtype=torch.float64)})),
        "must be finite in torch.float32",
    ),
    "huge header": (_text("model.safetensors", b"\xff" * 7 + b"\x7f" + b"{}"), "damaged, cut short or of another kind"),
    "pickle": (_text("model.safetensors", b"\x80\x04cos\nsystem\n."), "damaged, cut short or of another kind"),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), "model.safetensors, but there is no such"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_folder_is_refused_in_one_line(case: str, folder: Path) -> None:
    change, words = HOSTILE[case]
    change(folder)
    with pytest.raises(BronetError) as caught:
        load_pretrained(folder)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("model.depth=999999999", r"model\.depth"),
        (f"model.width={10**30}", r"model\.width"),
        ("model.depth=1000", "lacks"),
        ("model.width=65536", "shape"),
    ],
)
def test_the_recipe_of_a_run_cannot_ask_for_more_than_its_weights_hold(run: Path, setting: str, told: str) -> None:
    with pytest.raises(BronetError, match=told):
        trained_model(open_run(run).weights, override(open_run(run).recipe, [setting]))


def test_an_unknown_name_is_refused_with_the_known_ones_and_the_places() -> None:
    with pytest.raises(BronetError) as caught:
        bronet.load_pretrained("bronet-digit/digits")
    for known in (*pretrained_names(), package_home(), checkout_home(), user_home()):
        assert str(known) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_manifest_describes_the_files_in_the_repository() -> None:
    assert packaged_names() + tuple(network.name for network in published_networks()) == pretrained_names()
    for network in published_networks():
        folder = ROOT / "weights" / network.name
        assert {path.name for path in folder.iterdir()} == {file.name for file in network.files}
        for file in network.files:
            assert (folder / file.name).stat().st_size == file.bytes
            assert file_hash(folder / file.name) == file.sha256
        assert network.files[-1].name == "config.json"
        certificate = json.loads((ROOT / network.results / "certificate.json").read_text())
        assert certificate["weights_sha256"] == file_hash(folder / "model.safetensors")


def test_a_larger_network_is_found_in_the_first_place_that_has_it(tmp_path: Path) -> None:
    network = published_networks()[0]
    assert named_folder(network.name) == ROOT / "weights" / network.name
    first, second = tmp_path / "first", tmp_path / "second"
    shutil.copytree(ROOT / "weights" / network.name, second / network.name)
    assert published_folder(network, [first, second]) == second / network.name
    shutil.copytree(second / network.name, first / network.name)
    assert published_folder(network, [first, second]) == first / network.name


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_changed_byte_of_a_larger_network_is_refused(name: str, tmp_path: Path) -> None:
    network = published_networks()[0]
    folder = shutil.copytree(ROOT / "weights" / network.name, tmp_path / network.name)
    content = bytearray((folder / name).read_bytes())
    content[-2] ^= 1
    (folder / name).write_bytes(content)
    with pytest.raises(BronetError, match=str(folder / name)):
        load_pretrained(published_folder(network, [tmp_path]))


def test_a_larger_network_that_is_nowhere_is_refused_with_the_places(tmp_path: Path) -> None:
    homes = [tmp_path / "package", tmp_path / "home"]
    with pytest.raises(BronetError) as caught:
        published_folder(published_networks()[0], homes)
    assert all(str(home) in str(caught.value) for home in homes)
    assert "\n" not in str(caught.value)


def test_the_users_own_folder_is_the_one_that_the_variable_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path))
    assert user_home() == tmp_path
    monkeypatch.delenv(HOME_VARIABLE)
    assert user_home().name.lower() == "bronet"


def test_a_larger_network_is_downloaded_whole_and_checked(saved: Path, tmp_path: Path) -> None:
    names = ("model.safetensors", "config.json")
    files = tuple(PublishedFile(name, (saved / name).stat().st_size, file_hash(saved / name)) for name in names)
    with serving_files(saved) as address:
        network = PublishedNetwork("tiny/digits", address, "bronet train", "results", files)
        folder = published_folder(network, [tmp_path / "package", tmp_path / "home"])
        assert folder == tmp_path / "home" / "tiny" / "digits"
        assert all((folder / name).read_bytes() == (saved / name).read_bytes() for name in names)
        load_pretrained(folder)
        wrong = (PublishedFile(names[0], 0, "0" * 64), files[1])
        with pytest.raises(BronetError, match=f"must have SHA256 {'0' * 64}"):
            published_folder(replace(network, files=wrong), [tmp_path / "other"])
    assert not (tmp_path / "other" / "tiny" / "digits" / "config.json").exists()
    with pytest.raises(BronetError, match=str(tmp_path / "third")):
        published_folder(network, [tmp_path / "third"])


def test_a_run_folder_loads_as_well(run: Path) -> None:
    model = load_pretrained(run)
    assert torch.equal(model.head.bias, load_model(open_run(run)).head.bias)


@pytest.mark.parametrize("name", pretrained_names())
def test_a_named_network_loads_and_its_card_says_what_it_must(name: str) -> None:
    folder = named_folder(name)
    assert {path.name for path in folder.iterdir()} == {"config.json", "model.safetensors", "README.md"}
    model = bronet.load_pretrained(name)
    assert sum(parameter.numel() for parameter in model.parameters()) > 0
    card = (folder / "README.md").read_text(encoding="utf-8")
    for heading in ("## Training", "## What is proved", "## Intended use and limits", "## Licence"):
        assert heading in card
    assert "certified accuracy, radius" in card
    assert name in card


def test_the_weights_in_the_package_are_small_together() -> None:
    assert DIGITS in packaged_names()
    size = sum(path.stat().st_size for path in package_home().rglob("*") if path.is_file())
    assert size <= MEGABYTES * 10**6


def test_unpacking_gives_a_run_that_certifies_and_verifies(tmp_path: Path) -> None:
    network = find_network(DIGITS)
    run = unpack(network, tmp_path / "run")
    assert run.weights.read_bytes() == network.weights.read_bytes()
    certify_run(run.path, limit=25)
    assert verify_run(run.path).images == 25
    assert unpack(network, tmp_path / "run").path == run.path


def test_unpacking_that_was_interrupted_is_completed_and_training_is_left_alone(tmp_path: Path) -> None:
    network = find_network(DIGITS)
    run = unpack(network, tmp_path / "run")
    run.weights.unlink()
    assert file_hash(unpack(network, run.path).weights) == file_hash(network.weights)
    run.weights.unlink()
    run.append_log({"epoch": 1})
    with pytest.raises(BronetError, match="with another run; choose another"):
        unpack(network, run.path)


def test_unpacking_refuses_a_folder_with_another_run(run: Path, tmp_path: Path) -> None:
    other = shutil.copytree(run, tmp_path / "other")
    with pytest.raises(BronetError, match="with another run"):
        unpack(find_network(DIGITS), other)


def test_the_published_rows_of_the_digits_come_out_again(tmp_path: Path) -> None:
    """Evidence: the committed rows are those of the weights in the package."""
    run = unpack(find_network(DIGITS), tmp_path / "run")
    again = certify_run(run.path, limit=40).rows
    with unpacked(ROOT / "lab" / "results" / "digits") as results:
        rows = read_certificate_rows(results / "certificate.csv")
    for row, published in zip(again, rows, strict=False):
        assert (row.index, row.prediction) == (published.index, published.prediction)
        assert row.radius == pytest.approx(published.radius, rel=1e-9, abs=1e-12)


def test_a_model_is_saved_and_read_again(tmp_path: Path) -> None:
    model = bronet.create_model("bronet-digits", in_shape=(1, 8, 8), num_classes=3)
    model.save_pretrained(tmp_path / "mine")
    again = type(model).from_pretrained(tmp_path / "mine")
    images = torch.rand(4, 1, 8, 8)
    torch.testing.assert_close(again(images), model.eval()(images), rtol=0, atol=0.05)
    bronet.save_pretrained(again, tmp_path / "twice")
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("mine", "twice")]
    assert weights[0] == weights[1]
    assert again.spec == model.spec
    with pytest.raises(BronetError, match="must be a LipConvNet, got a BRONet"):
        LipConvNet.from_pretrained(tmp_path / "mine")


def test_networks_of_others_are_no_pretrained_networks(tmp_path: Path) -> None:
    with pytest.raises(BronetError, match="save_run"):
        bronet.save_pretrained(torch.nn.Linear(2, 2), tmp_path / "mine")
    assert not (tmp_path / "mine").exists()


def test_the_hub_is_asked_only_for_what_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    for ask in (
        lambda: bronet.load_pretrained("hf:owner/name"),
        lambda: bronet.push_to_hub(bronet.load_pretrained("bronet-digits/digits"), "owner/name"),
    ):
        with pytest.raises(BronetError, match="bronet\\[hub\\]"):
            ask()


def test_a_hub_that_cannot_be_reached_is_one_line() -> None:
    pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")
    code = (
        "import bronet\n"
        "for ask in (bronet.load_pretrained, lambda name: bronet.push_to_hub(bronet.load_pretrained("
        "'bronet-digits/digits'), 'owner/name')):\n"
        "    try:\n        ask('hf:owner/name')\n    except bronet.BronetError as error:\n        print(error)\n"
    )
    environment = os.environ | {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_TOKEN": "none", "HF_HUB_DISABLE_XET": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert [line[:16] for line in done.stdout.splitlines()] == ["the Hugging Face"] * 2


def test_torch_hub_finds_the_networks_of_a_checkout() -> None:
    model = torch.hub.load(str(ROOT), "load_pretrained", "bronet-digits/digits", source="local")
    expected = bronet.load_pretrained("bronet-digits/digits")
    images = torch.rand(2, 1, 8, 8)
    assert torch.equal(model(images), expected(images))
    assert "bronet-m" in torch.hub.load(str(ROOT), "list_models", source="local")

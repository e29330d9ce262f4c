"""What is released: a wheel and an sdist without junk, that install and run outside the tree."""

import email
import subprocess
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from bronet import __version__
from bronet.pretrained.places import packaged_names
from packaged import ROOT, build, clean_environment

DATA = {
    "bronet/py.typed",
    "bronet/data/digits.npz",
    "bronet/data/DIGITS-ATTRIBUTION.txt",
    "bronet/pretrained/networks/manifest.json",
    "bronet/report/page.html",
}
WHEEL_BYTES = 8_000_000
EXTRAS = {"attack", "data", "dev", "docs", "onnx", "all", "track", "web"}


def source_files() -> set[str]:
    """Return the files of the repository: those that git does not ignore."""
    words = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return {name for name in listed if (ROOT / name).is_file()}


def test_the_wheel_is_the_package_and_nothing_else(built: Path) -> None:
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
        information = {name.partition("/")[2] for name in wheel.namelist() if ".dist-info/" in name}
    package = {name.removeprefix("src/") for name in source_files() if name.startswith("src/bronet/")}
    assert names == package
    assert names >= DATA
    assert information == {"METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE"}


def test_the_wheel_is_small_and_holds_the_small_networks_only(built: Path) -> None:
    path = next(built.glob("*.whl"))
    assert path.stat().st_size <= WHEEL_BYTES
    with zipfile.ZipFile(path) as wheel:
        weights = [name for name in wheel.namelist() if name.endswith(".safetensors")]
    assert packaged_names() == ("bronet-digits/digits", "bronet-s-fast/cifar10")
    certified = [f"bronet/pretrained/networks/{name}/model.safetensors" for name in packaged_names()]
    assert sorted(weights) == [*certified, "bronet/web/ordinary-digits.safetensors"]


def test_the_wheel_says_its_version_and_its_extras(built: Path) -> None:
    path = next(built.glob("*.whl"))
    assert path.name == f"bronet-{__version__}-py3-none-any.whl"
    with zipfile.ZipFile(path) as wheel:
        text = wheel.read(f"bronet-{__version__}.dist-info/METADATA").decode()
    metadata = email.message_from_string(text)
    assert metadata["Version"] == __version__
    assert metadata["License-Expression"] == "MIT"
    assert set(metadata.get_all("Provides-Extra")) >= EXTRAS
    assert f"## {__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_every_extra_is_tested_and_pinned() -> None:
    """What a user can install by an extra, the development environment has, in a version of the constraints.

    It lacks the toolbox and the hub, whose tests are skipped without them, but their versions are pinned.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]

    def packages(extra: str) -> set[str]:
        named = {name for entry in extras[extra] if entry.startswith("bronet[") for name in entry[7:-1].split(",")}
        own = {entry for entry in extras[extra] if not entry.startswith("bronet[")}
        return own.union(*(packages(name) for name in named))

    installed = {*packages("dev"), *project["dependencies"]}
    assert all(packages(extra) <= installed for extra in extras.keys() - {"art", "hub"})
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8").lower()
    for requirement in installed | packages("art") | packages("hub"):
        name = requirement.partition(">")[0].partition("=")[0].partition("[")[0].lower()
        assert f"\n{name}==" in pins, name


def test_the_sdist_holds_files_of_the_repository_and_builds_the_same_wheel(built: Path, tmp_path: Path) -> None:
    with tarfile.open(next(built.glob("*.tar.gz"))) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
        sdist.extractall(tmp_path, filter="data")
    assert names - {"PKG-INFO"} <= source_files()
    assert {"lab/commands.py", "LICENSE", "CHANGELOG.md", "CITATION.cff", "pyproject.toml"} <= names
    build(next(tmp_path.iterdir()), tmp_path / "again", "wheel")
    first, second = next(built.glob("*.whl")), next((tmp_path / "again").glob("*.whl"))
    with zipfile.ZipFile(first) as one, zipfile.ZipFile(second) as other:
        contents = ({entry.filename: entry.CRC for entry in wheel.infolist()} for wheel in (one, other))
        assert next(contents) == next(contents)


def test_the_installed_command_is_the_wheels(wheel_python: Path, tmp_path: Path) -> None:
    """Outside the tree, `bronet` and `import bronet` are those of the new environment."""
    environment = clean_environment(wheel_python)
    code = "import bronet, pathlib, sys; print(pathlib.Path(bronet.__file__).is_relative_to(sys.prefix))"
    printed = []
    for words in (["bronet", "--version"], [str(wheel_python), "-c", code]):
        done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        printed.append(done.stdout)
    assert printed == [f"bronet {__version__}\n", "True\n"]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("built")
    build(ROOT, out, "sdist", "wheel")
    return out

"""Where a named network lies: in the package, in the `weights` folder of a checkout, or in the user's own folder.

Small networks are in the package. The larger ones are listed in its manifest with the SHA-256 of every file, so a copy
from any other place is the published network or is refused. (A manifest beside the weights could be changed with them.)
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from bronet.data.archive import check_digest, download_file
from bronet.errors import BronetError
from bronet.files import read_object
from bronet.records import read_record

HOME_VARIABLE = "BRONET_HOME"
MANIFEST = "manifest.json"
CONFIG = "config.json"
HUB = "hf:"


@dataclass(frozen=True)
class PublishedFile:
    """One file of a published network."""

    name: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class PublishedNetwork:
    """A network of the manifest.

    `url` is the address of its folder, empty as long as it has none; `source` is how it was made; `results` is the
    folder of its published rows; `files` ends with the configuration, which a complete folder has.
    """

    name: str
    url: str
    source: str
    results: str
    files: tuple[PublishedFile, ...]


@dataclass(frozen=True)
class Manifest:
    """The published networks that are not in the package."""

    networks: tuple[PublishedNetwork, ...]


def package_home() -> Path:
    """Return the folder of the package's own networks."""
    return Path(str(resources.files("bronet.pretrained"))) / "networks"


def checkout_home() -> Path | None:
    """Return the `weights` folder of the checkout that this package runs from; None for an installed package."""
    sources = Path(__file__).resolve().parents[2]
    return sources.parent / "weights" if sources.name == "src" else None


def user_home() -> Path:
    """Return the user's own folder of networks: $BRONET_HOME, else one in the cache folder."""
    cache_home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get(HOME_VARIABLE) or Path(cache_home) / "bronet")


@cache
def published_networks() -> tuple[PublishedNetwork, ...]:
    """Return the networks of the manifest."""
    return read_manifest(package_home() / MANIFEST).networks


def read_manifest(path: Path) -> Manifest:
    """Return the content of a manifest; empty if there is no such file."""
    content = read_object(path) if path.exists() else {"networks": []}
    return read_record(Manifest, content, "manifest", file=path)


def packaged_names() -> tuple[str, ...]:
    """Return the names of the networks in the package."""
    home = package_home()
    return tuple(sorted(path.parent.relative_to(home).as_posix() for path in home.glob(f"*/*/{CONFIG}")))


def pretrained_names() -> tuple[str, ...]:
    """Return the names of all networks: those in the package and those of the manifest."""
    return tuple(sorted({*packaged_names(), *(network.name for network in published_networks())}))


@contextmanager
def hugging_face(repo_id: str) -> Iterator[Any]:
    """Give the package huggingface_hub; where it is not installed, or the hub does not serve, one line says so."""
    try:
        import huggingface_hub
    except ImportError:
        raise BronetError("the Hugging Face hub needs huggingface_hub; pip install 'bronet[hub]'") from None
    try:
        yield huggingface_hub
    except Exception as error:
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        raise BronetError(f"the Hugging Face hub must be reached for {repo_id}, but: {reason}") from None


def named_folder(name: str) -> Path:
    """Return the folder of a named network, downloaded if need be; raise with the places where it was sought.

    "hf:owner/name" is one on the Hugging Face hub.
    """
    if name.startswith(HUB):
        with hugging_face(repo_id := name.removeprefix(HUB)) as hub:
            return Path(hub.snapshot_download(repo_id, allow_patterns=[CONFIG, "model.safetensors"]))
    if name in packaged_names():
        return package_home() / name
    homes, network = _homes(), _of_the_manifest(name)
    if network is None:
        raise BronetError(
            f"{name} must be a run's folder, or the name or folder of a pretrained network, but it is neither; "
            f"the names are {', '.join(pretrained_names())}; looked in {_listed(homes)}"
        )
    return published_folder(network, homes)


def how_to_get(name: str) -> str:
    """Return how to get a published network onto this machine; empty for one that is on it. Nothing is downloaded."""
    homes, network = _homes(), _of_the_manifest(name)
    if network is None or _found(network, homes) is not None:
        return ""
    return f"downloaded from {network.url} when it is asked for" if network.url else _by_hand(network, homes[-1])


def published_folder(network: PublishedNetwork, homes: Sequence[Path]) -> Path:
    """Return the folder of a network of the manifest in the first of `homes` that has it, else download it to the last.

    Guaranteed: its configuration, which names the weights by their hash, is the published one.
    """
    if (found := _found(network, homes)) is not None:
        config, remedy = network.files[-1], f"delete {found} and get {network.name} again"
        check_digest(found / CONFIG, config.sha256, named=str(found / CONFIG), remedy=remedy)
        return found
    folder = homes[-1] / network.name
    if not network.url:
        raise BronetError(
            f"{network.name} must be on this machine, because it has no address for a download yet, but it is not in "
            f"{_listed(homes)}; {_by_hand(network, homes[-1])}"
        )
    try:
        for file in network.files:  # the configuration comes last: a folder that has one is complete
            download_file(f"{network.url.rstrip('/')}/{file.name}", folder / file.name, file.sha256)
    except BronetError as error:
        raise BronetError(f"{network.name} is not in {_listed(homes)}; {error}") from None
    return folder


def _homes() -> list[Path]:
    """Return the folders that named networks may lie in, in the order in which they are looked into."""
    return [home for home in (package_home(), checkout_home(), user_home()) if home is not None]


def _of_the_manifest(name: str) -> PublishedNetwork | None:
    return next((network for network in published_networks() if network.name == name), None)


def _found(network: PublishedNetwork, homes: Sequence[Path]) -> Path | None:
    return next((home / network.name for home in homes if (home / network.name / CONFIG).is_file()), None)


def _by_hand(network: PublishedNetwork, home: Path) -> str:
    return f"copy weights/{network.name} of the repository to {home / network.name}"


def _listed(homes: Sequence[Path]) -> str:
    return ", ".join(str(home) for home in homes)

"""Publishing a certified run: its evidence as a small folder of text, its network as a pretrained folder with a card.

The evidence is what every table is recomputed from: recipe, record, log, one row per image, certificate, attacks. Paths
of the machine are removed from commands, and the certificate is sealed again; no number changes.
"""

import json
import re
import tempfile
from dataclasses import replace
from pathlib import Path

from bronet.errors import BronetError
from bronet.files import Json, replace_bytes, replace_text, require_writable, sealed, write_object
from bronet.pretrained.network import WEIGHTS, read_config
from bronet.pretrained.places import (
    CONFIG,
    MANIFEST,
    Manifest,
    PublishedFile,
    PublishedNetwork,
    package_home,
    published_networks,
    read_manifest,
)
from bronet.pretrained.saving import published_record, published_text, save_pretrained, save_rounded
from bronet.records import as_plain
from bronet.report.evidence import read_evidence
from bronet.run.attack_rows import check_attack, read_attack, read_attack_rows
from bronet.run.certificate import check_rows, file_hash, read_certificate
from bronet.run.folder import RunFolder, create_run, open_run, remove_run
from bronet.run.weights import load_model
from lab.card import model_card

CARD = "README.md"
REMARK = "kernels and matrices rounded to bf16 after training"
LARGEST_IN_PACKAGE = 8_000_000
"""Bytes of weights: a larger network would make the package as large for everyone."""
WEIGHTS_FOLDER = Path(__file__).parents[1] / "weights"
NAME = re.compile(r"[a-z0-9][a-z0-9.-]*/[a-z0-9][a-z0-9.-]*")


def publish(
    run: RunFolder | Path | str,
    results: Path | str,
    *,
    pretrained: str | None = None,
    overwrite: bool = False,
    package: Path | None = None,
    weights: Path | None = None,
    largest_in_package: int = LARGEST_IN_PACKAGE,
) -> list[Path]:
    """Write the evidence of a run into a folder, and its network under a name, and return what was written.

    Guaranteed: seals and hashes of the run's certificates hold, those of the weights too, and nothing is written
    otherwise. With `pretrained` the weights must be rounded already (`python -m lab round`).

    Args:
        run: the certified run.
        results: the folder of its evidence, new or empty unless `overwrite` is set.
        pretrained: the name of the network, "model/data".
        overwrite: replace what `results` holds.
        package: where small networks lie; by default in the package bronet.
        weights: where larger ones lie, listed in the package's manifest; by default in the folder `weights`.
        largest_in_package: bytes of weights up to which a network is small.
    """
    run, results = open_run(run), Path(results)
    target = RunFolder(results)
    if results.resolve() == run.path.resolve() or (results.exists() and not results.is_dir()):
        raise BronetError(f"--results must be a folder other than the run's, got {results}")
    if results.exists() and any(results.iterdir()) and not overwrite:
        raise BronetError(f"--results must be new or empty, got {results} with files in it; --overwrite replaces them")
    require_writable(results)
    contents: dict[Path, bytes] = {}
    for split in ("test", "train"):
        contents |= _certificate(run, target, split)
    if target.certificate().facts not in contents:
        raise BronetError(f"{run.path} must be certified on its test split; run: bronet certify {run.path}")
    contents |= _attacks(run, results)
    contents[target.recipe_file] = run.recipe_file.read_bytes()
    contents[target.record] = _json(sealed(published_record(run.read_record())))
    if run.log.exists():
        contents[target.log] = run.log.read_bytes()
    home = package = package or package_home()
    if pretrained is not None:
        _check_name(pretrained, run.recipe.data.name)
        _check_rounded(run)
        if run.weights.stat().st_size > largest_in_package:
            home = weights or WEIGHTS_FOLDER
    earlier = [path for path in target.evidence() if path.is_file()]
    for path, content in contents.items():
        replace_bytes(path, content)
    for path in earlier:
        if path not in contents:
            path.unlink()
    if pretrained is not None:
        folder = save_pretrained(run, home / pretrained)
        parameters = sum(parameter.numel() for parameter in load_model(run).parameters())
        card = model_card(pretrained, read_config(folder / CONFIG), parameters, read_evidence(run))
        replace_text(folder / CARD, card)
        if home == package:
            return [results, folder]
        command = published_record(run.read_record()).get("command", "bronet train")
        inside = results.resolve().is_relative_to(home.resolve().parent)
        place = results.resolve().relative_to(home.resolve().parent).as_posix() if inside else results.name
        manifest = package / MANIFEST
        _add_to_manifest(manifest, pretrained, folder, source=f"{command}; then lab round", results=place)
        return [results, folder, manifest]
    return [results]


def _certificate(run: RunFolder, published: RunFolder, split: str) -> dict[Path, bytes]:
    """Return the published files of a split's certificate; none if it was not certified."""
    files, target = run.certificate(split), published.certificate(split)
    if not files.facts.exists():
        return {}
    certificate = read_certificate(files.facts)
    check_rows(files.rows, certificate)
    for path, recorded in ((run.recipe_file, certificate.recipe_sha256), (run.weights, certificate.weights_sha256)):
        if file_hash(path) != recorded:
            raise BronetError(f"the certificate of {run.path} does not hold: {path.name} has changed; certify again")
    certificate = replace(certificate, command=published_text(certificate.command), targeted_sha256=None)
    return {target.rows: files.rows.read_bytes(), target.facts: _json(certificate.sealed())}


def _attacks(run: RunFolder, results: Path) -> dict[Path, bytes]:
    """Return the published files of every finished attack; raise if one broke the certificate, or is not about it."""
    contents: dict[Path, bytes] = {}
    certificate = read_certificate(run.certificate().facts)
    for files in run.attacks():
        facts = read_attack(files.facts)
        if any(row.refutes for row in read_attack_rows(files.rows)):
            raise BronetError(f"a run whose certificate was broken must not be published; see {files.rows}")
        if facts is None or not facts.finished:
            continue  # stopped before its end
        if not files.rows.is_file():
            raise BronetError(
                f"{files.facts} must have its rows in {files.rows.name}, but there is no such file; attack again"
            )
        check_attack(files, facts, pixels=certificate.pixels, network=certificate.network)
        contents[results / files.facts.name] = _json(replace(facts, command=published_text(facts.command)).plain())
        contents[results / files.rows.name] = files.rows.read_bytes()
    return contents


def _add_to_manifest(path: Path, name: str, folder: Path, *, source: str, results: str) -> None:
    """List a network, in place of an earlier one with this name, with the bytes and the hash of every file."""
    names = sorted((file.name for file in folder.iterdir()), key=lambda name: (name == CONFIG, name))
    files = tuple(PublishedFile(name, (folder / name).stat().st_size, file_hash(folder / name)) for name in names)
    network = PublishedNetwork(name=name, url="", source=source, results=results, files=files)
    others = (other for other in read_manifest(path).networks if other.name != name)
    manifest = Manifest(tuple(sorted((*others, network), key=lambda network: network.name)))
    write_object(path, as_plain(manifest))
    published_networks.cache_clear()


def round_run(run: RunFolder | Path | str, out: Path | str) -> RunFolder:
    """Return a new run folder with the rounded weights, the recipe, the log and the record of a run.

    The record says that they are rounded. Nothing that was proved of the run is copied: certify the new one.
    """
    run, out = open_run(run), Path(out)
    if out.resolve() == run.path.resolve():
        raise BronetError(f"--out must be another folder than the run's, got {out}")
    recipe = run.recipe
    model = load_model(run)
    record = {**run.read_record(), "weights": REMARK} if run.record.exists() else None
    result = create_run(out, recipe)
    try:
        if run.log.exists():
            replace_bytes(result.log, run.log.read_bytes())
        if record is not None:
            result.write_record(record)
        save_rounded(result.weights, model, recipe=recipe)
    except BaseException:  # also Ctrl-C: half a run would be in the way of the next attempt
        remove_run(result)
        raise
    return result


def _check_name(name: str, data: str) -> None:
    if not NAME.fullmatch(name) or not name.endswith(f"/{data}"):
        raise BronetError(f"--pretrained must be model/{data}, in small letters, digits, dots and dashes, got {name!r}")


def _check_rounded(run: RunFolder) -> None:
    """Raise unless rounding the run's weights changes no byte of their file."""
    recipe = run.recipe
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / WEIGHTS
        save_rounded(path, load_model(run), recipe=recipe)
        same = file_hash(path) == file_hash(run.weights)
    if not same:
        raise BronetError(
            f"the certificate of a pretrained network must be of rounded weights, those of {run.path} are not; "
            f"run: python -m lab round {run.path} --out NEW, then certify and publish NEW"
        )


def _json(content: Json) -> bytes:
    return (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode()

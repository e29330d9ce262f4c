"""Publishing a certified run: its evidence as a small folder of text, its network as a pretrained folder.

The evidence is what every table is recomputed from: recipe, record, log, one row per image, certificate, attacks. Paths
of the machine are removed from commands, and the certificate is sealed again; no number changes.
"""

import json
import re
import tempfile
from pathlib import Path

from bronet.certificates.run import CertificateFiles, load_model
from bronet.certificates.verify import read_certificate
from bronet.errors import BronetError
from bronet.files import Json, read_object, replace_bytes
from bronet.pretrained.find import WEIGHTS
from bronet.pretrained.places import package_home
from bronet.pretrained.record import published_record, published_text
from bronet.pretrained.rounding import save_rounded
from bronet.pretrained.save import save_pretrained
from bronet.report.attack_facts import check_attack
from bronet.run.attack_rows import read_attack_rows
from bronet.run.certificate import SEAL, file_hash, sealed
from bronet.run.folder import RunFolder, open_run

NAME = re.compile(r"[a-z0-9][a-z0-9.-]*/[a-z0-9][a-z0-9.-]*")
ROW_FILES = ("recipe.yaml", "log.jsonl", "record.json", "certificate*", "attack-*")


def publish(
    run_dir: Path | str, results: Path | str, *, pretrained: str = "", overwrite: bool = False, home: Path | None = None
) -> list[Path]:
    """Write the evidence of a run into a folder, and its network under a name, and return what was written.

    Guaranteed: seals and hashes of the run's certificates hold, and nothing is written otherwise; the weights may be
    elsewhere, and their hash is then the certificate's word. With `pretrained` they must be here, and rounded already
    (`bronet round`). `home` is where named networks are; by default in this package.
    """
    run, results = open_run(Path(run_dir)), Path(results)
    if results.resolve() == run.path.resolve() or (results.exists() and not results.is_dir()):
        raise BronetError(f"--results must be a folder other than the run's, got {results}")
    if results.exists() and any(results.iterdir()) and not overwrite:
        raise BronetError(f"--results must be new or empty, got {results} with files in it; --overwrite replaces them")
    contents: dict[Path, bytes] = {}
    for split in ("test", "train"):
        contents |= _certificate(run, results, split)
    if results / "certificate.json" not in contents:
        raise BronetError(f"{run.path} must be certified on its test split; run: bronet certify {run.path}")
    contents |= _attacks(run, results)
    contents[results / "recipe.yaml"] = run.recipe_file.read_bytes()
    contents[results / "record.json"] = _json(published_record(run.record))
    if run.log.exists():
        contents[results / "log.jsonl"] = run.log.read_bytes()
    if pretrained:
        _check_name(pretrained, run.recipe().data.name)
        _check_rounded(run)
    earlier = [path for pattern in ROW_FILES for path in results.glob(pattern)]
    for path, content in contents.items():
        replace_bytes(path, content)
    for path in earlier:
        if path not in contents:
            path.unlink()
    if pretrained:
        folder = save_pretrained(run.path, (home or package_home()) / pretrained, name=pretrained)
        return [results, folder]
    return [results]


def _certificate(run: RunFolder, results: Path, split: str) -> dict[Path, bytes]:
    """Return the published files of a split's certificate; none if it was not certified."""
    files, target = CertificateFiles.of(run.path, split), CertificateFiles.of(results, split)
    if not files.facts.exists():
        return {}
    facts = read_certificate(files.facts)
    hashes = [
        (f"seal of {files.facts.name}", sealed(facts)[SEAL], facts.get(SEAL)),
        (files.rows.name, file_hash(files.rows), facts.get("rows_sha256")),
        ("recipe.yaml", file_hash(run.recipe_file), facts.get("recipe_sha256")),
    ]
    if run.weights.exists():
        hashes.append((WEIGHTS, file_hash(run.weights), facts.get("weights_sha256")))
    for what, found, recorded in hashes:
        if found != recorded:
            raise BronetError(f"the certificate of {run.path} does not hold: {what} has changed; certify again")
    kept = {key: value for key, value in facts.items() if key != "targeted_sha256"}
    published = sealed({**kept, "command": published_text(str(facts.get("command", "")))})
    return {target.rows: files.rows.read_bytes(), target.facts: _json(published)}


def _attacks(run: RunFolder, results: Path) -> dict[Path, bytes]:
    """Return the published files of every finished attack; raise if one broke the certificate, or is not about it."""
    contents: dict[Path, bytes] = {}
    certified = read_certificate(CertificateFiles.of(run.path, "test").facts)
    network = {key: str(certified.get(key)) for key in ("weights_sha256", "recipe_sha256")}
    for path in sorted(run.path.glob("attack-*.json")):
        facts, rows = read_object(path), path.with_suffix(".csv")
        if any(row.refutes for row in read_attack_rows(rows)):
            raise BronetError(f"a run whose certificate was broken must not be published; see {rows}")
        if "robust_accuracy" not in facts:
            continue  # stopped before its end
        facts["command"] = published_text(str(facts.get("command", "")))
        contents[results / path.name] = _json(facts)
        if not rows.is_file():
            raise BronetError(f"{path} must have its rows in {rows.name}, but there is no such file; attack again")
        check_attack(path, facts, pixels=None, network=network)
        contents[results / rows.name] = rows.read_bytes()
    return contents


def _check_name(name: str, data: str) -> None:
    if not NAME.fullmatch(name) or not name.endswith(f"/{data}"):
        raise BronetError(f"--pretrained must be model/{data}, in small letters, digits, dots and dashes, got {name!r}")


def _check_rounded(run: RunFolder) -> None:
    """Raise unless rounding the run's weights changes no byte of their file."""
    recipe = run.recipe()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / WEIGHTS
        save_rounded(path, load_model(run, recipe), recipe=recipe)
        same = file_hash(path) == file_hash(run.weights)
    if not same:
        raise BronetError(
            f"the certificate of a pretrained network must be of rounded weights, those of {run.path} are not; "
            f"run: bronet round {run.path} --out NEW, then certify and publish NEW"
        )


def _json(content: Json) -> bytes:
    return (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode()

"""Published rows in one small file per run, `rows.npz.xz`, beside the files of facts that vouch for them.

A folder that `python -m lab publish` wrote is packed once. Radii, proved and naive, come back bit for bit.
Margins, which only Figure 12 draws, are rounded down to float32, so they are lower bounds of the margins that were
computed. Every file of facts names the SHA-256 of the CSV file that its rows unpack to, and a packed certificate is
sealed again over that. Rows are unpacked into an ordinary run folder, so that they go through the checks of every run.
"""

import io
import lzma
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from bronet.errors import BronetError
from bronet.files import Json, read_object, replace_bytes, write_object
from bronet.records import rows_of, write_rows
from bronet.run.attack_rows import AttackRow, read_attack_rows
from bronet.run.certificate import Row, check_rows, file_hash, read_certificate, read_certificate_rows

FILE = "rows.npz.xz"
FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 0, "lp": 3, "pb": 3}]
"""Literal context by position within eight bytes: what the bytes of floats need."""
ROWS_HASH = "rows_sha256"
Columns = dict[str, np.ndarray]


def pack(folder: Path) -> Path:
    """Replace the CSV files of a published run by one packed file, drop its training log, and return the path.

    The certificate's hash of its rows, and its seal, are those of the packed rows; nothing else in it changes.
    """
    if (folder / FILE).exists():
        raise BronetError(f"a folder to pack must not be packed already, got {folder}; remove {FILE} to pack anew")
    packed: Columns = {}
    facts: dict[Path, Json] = {}
    with TemporaryDirectory() as scratch:
        for path in _facts(folder):
            rows, table = path.with_suffix(".csv"), Path(scratch) / f"{path.stem}.csv"
            if path.name.startswith("attack-"):
                columns = _attack_columns(read_attack_rows(rows))
                write_rows(AttackRow, table, _attack_rows(columns))
                facts[path] = {**read_object(path), ROWS_HASH: file_hash(table)}
            else:
                certificate = read_certificate(path)
                check_rows(rows, certificate)
                columns = _columns(read_certificate_rows(rows))
                write_rows(Row, table, _rows(columns))
                facts[path] = replace(certificate, rows_sha256=file_hash(table)).sealed()
            packed |= {f"{path.stem}/{name}": column for name, column in columns.items()}
    if not packed:
        raise BronetError(
            f"a folder to pack must hold rows of a certificate, got {folder}; run python -m lab publish first"
        )
    buffer = io.BytesIO()
    np.savez(buffer, **packed)  # type: ignore[arg-type]
    replace_bytes(folder / FILE, lzma.compress(buffer.getvalue(), filters=FILTERS))
    for path, content in facts.items():
        write_object(path, content)
        path.with_suffix(".csv").unlink()
    (folder / "log.jsonl").unlink(missing_ok=True)
    return folder / FILE


@contextmanager
def unpacked(folder: Path) -> Iterator[Path]:
    """Give a run folder with the rows as CSV files: a temporary one where they are packed, else the folder itself.

    Raises `BronetError` where the rows are not those that a file of facts names.
    """
    if not (folder / FILE).exists():
        yield folder
        return
    with TemporaryDirectory() as scratch:
        target = Path(scratch) / folder.resolve().name
        shutil.copytree(folder, target, ignore=shutil.ignore_patterns(FILE, "*.png"))
        packed = _read(folder / FILE)
        for path in _facts(target):
            columns = {name.rpartition("/")[2]: packed[name] for name in packed if name.startswith(f"{path.stem}/")}
            table = path.with_suffix(".csv")
            try:
                if path.name.startswith("attack-"):
                    write_rows(AttackRow, table, _attack_rows(columns))
                else:
                    write_rows(Row, table, _rows(columns))
            except KeyError as error:
                raise BronetError(f"{folder / FILE} must hold the rows of {path.name}; {error} is missing") from None
            if read_object(path).get(ROWS_HASH) != file_hash(table):
                raise BronetError(f"{folder / FILE} must hold the rows that {path.name} names by hash; restore them")
        yield target


def _facts(folder: Path) -> list[Path]:
    return sorted([*folder.glob("certificate*.json"), *folder.glob("attack-*.json")])


def _read(path: Path) -> Columns:
    try:
        with np.load(io.BytesIO(lzma.decompress(path.read_bytes())), allow_pickle=False) as content:
            return dict(content)
    except (OSError, EOFError, ValueError, lzma.LZMAError) as error:
        raise BronetError(f"could not read the packed rows {path} ({error}); restore the file") from None


def _columns(rows: list[Row]) -> Columns:
    radius = np.array([row.radius for row in rows])
    naive = np.array([row.naive_radius for row in rows])
    near = naive.astype(np.float32)
    if (near.astype(np.float64) != naive).any():
        raise BronetError("naive radii must be float32 numbers, as certifying writes them; certify again")
    return {
        "index": _steps([row.index for row in rows]),
        "label": _small([row.label for row in rows]),
        "prediction": _small([row.prediction for row in rows]),
        "margin": _rounded_down(np.array([row.margin for row in rows])),
        "radius": radius,
        "naive": near.view(np.int32) - radius.astype(np.float32).view(np.int32),  # a few bits: the two are close
    }


def _rows(columns: Columns) -> list[Row]:
    radius = columns["radius"]
    naive = (columns["naive"] + radius.astype(np.float32).view(np.int32)).view(np.float32)
    told = {name: columns[name] for name in ("label", "prediction", "margin")}
    derived = {"index": np.cumsum(columns["index"]) - 1, "correct": columns["label"] == columns["prediction"]}
    return rows_of(Row, {**told, **derived, "radius": radius, "naive_radius": naive})


def _attack_columns(rows: list[AttackRow]) -> Columns:
    return {
        "index": _steps([row.index for row in rows]),
        "label": _small([row.label for row in rows]),
        "prediction": _small([row.prediction for row in rows]),
        "found": _small([row.found for row in rows]),
        "l2": np.array([row.l2 for row in rows]),
        "linf": np.array([row.linf for row in rows]),
        "radius": np.array([row.radius for row in rows]),
    }


def _attack_rows(columns: Columns) -> list[AttackRow]:
    robust = (columns["label"] == columns["prediction"]) & (columns["prediction"] == columns["found"])
    return rows_of(AttackRow, {**columns, "index": np.cumsum(columns["index"]) - 1, "robust": robust})


def _steps(indices: list[int]) -> np.ndarray:
    """Return the distances between indices, which are 1 almost everywhere."""
    return np.diff(np.array(indices, dtype=np.int32), prepend=np.int32(-1))


def _small(numbers: list[int]) -> np.ndarray:
    return np.array(numbers, dtype=np.uint8 if max(numbers, default=0) < 2**8 else np.uint16)


def _rounded_down(numbers: np.ndarray) -> np.ndarray:
    """Return the largest float32 numbers that are not above these."""
    near = numbers.astype(np.float32)
    return np.where(near.astype(np.float64) > numbers, np.nextafter(near, np.float32(-np.inf)), near)

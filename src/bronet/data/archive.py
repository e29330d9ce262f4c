"""Download files and unpack archives so that only complete, checked files appear under their final names.

Each download and each unpacked folder gets its final name by one rename at the end, so that an interruption, a full
disk or a second process leaves nothing incomplete. The authors of CIFAR publish an MD5, which detects damage in transit
but does not stop an attacker, so archives are not trusted when they are unpacked. Our own files have a SHA-256.
"""

import hashlib
import http.client
import os
import shutil
import tarfile
import tempfile
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from bronet.errors import BronetError

CHUNK_BYTES = 1 << 20
TIMEOUT_SECONDS = 30.0
PUBLIC_FILE_MODE = 0o644
PUBLIC_FOLDER_MODE = 0o755
"""Temporary files and folders are private, but a data set is for all users of the machine."""


class Digest(NamedTuple):
    """The hash that a file must have."""

    algorithm: Literal["md5", "sha256"]
    value: str


def download_file(url: str, destination: Path, digest: Digest) -> None:
    """Download `url`, which must have this digest, to `destination`; a failure leaves nothing there."""
    by_hand = f"or download {url} elsewhere and put it at {destination}"
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=destination.parent, prefix=f".{destination.name}-", suffix=".part")
    except OSError as error:
        raise BronetError(f"cannot write to {destination.parent}: {error.strerror}; choose another folder") from None
    part = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            _fetch(url, file)
        check_digest(part, digest, named=f"the download of {url}", remedy=f"try again, {by_hand}")
        part.chmod(PUBLIC_FILE_MODE)
        part.replace(destination)
    except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
        raise BronetError(f"cannot download {url} ({_reason(error)}): connect to the internet, {by_hand}") from None
    except OSError as error:
        raise BronetError(f"cannot write {destination}: {error.strerror}; free some space, {by_hand}") from None
    finally:
        part.unlink(missing_ok=True)


def check_digest(path: Path, digest: Digest, *, named: str, remedy: str) -> None:
    """Raise unless the file at `path` has this digest; the error names it as `named` and ends with `remedy`."""
    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, lambda: hashlib.new(digest.algorithm, usedforsecurity=False)).hexdigest()
    except OSError as error:
        raise BronetError(f"cannot read {path} ({error.strerror}): {remedy}") from None
    if found != digest.value:
        raise BronetError(f"{named} must have {digest.algorithm.upper()} {digest.value}, got {found}: {remedy}")


def _fetch(url: str, file: BinaryIO) -> None:
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with _opened(url) as response, Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        length = response.headers.get("Content-Length")
        task = progress.add_task(url.rsplit("/", 1)[-1], total=int(length) if length else None)
        while chunk := response.read(CHUNK_BYTES):
            file.write(chunk)
            progress.advance(task, len(chunk))


def _opened(url: str) -> http.client.HTTPResponse:
    try:
        response: http.client.HTTPResponse = urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS)
    except urllib.error.HTTPError as error:
        error.close()  # it is an open connection
        raise urllib.error.URLError(f"HTTP status {error.code}, {error.reason}") from None
    return response


def _reason(error: Exception) -> str:
    """One line without the brackets of urllib's nested errors."""
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    return " ".join(str(reason).split()) or type(error).__name__


def official_folder(name: str, folder: Path, archive: Path, *, md5: str, url: str, download: bool) -> Path:
    """Return the folder of an official data set, unpacked from its archive if necessary, downloaded if allowed."""
    if folder.is_dir():
        return folder
    if not archive.is_file():
        if not download:
            raise BronetError(
                f"{name} must be in {folder.parent} as the folder {folder.name} or the archive {archive.name}, found "
                f"neither: get {url}, allow the download (--download), or name another place (--data-dir)"
            )
        download_file(url, archive, Digest("md5", md5))
    unpack_archive(archive, folder, md5=md5, url=url)
    return folder


def unpack_archive(archive: Path, folder: Path, *, md5: str, url: str) -> None:
    """Make `folder` from the member of that name in the tar or zip file `archive`, whose MD5 is `md5`.

    Paths and links to places outside the folder, and special files, are refused (tarfile's "data" filter) or made
    relative to it (zipfile).
    """
    check_digest(archive, Digest("md5", md5), named=str(archive), remedy=f"delete it and get it again from {url}")
    try:
        with unpacking(folder) as unpacked:
            _extract(archive, unpacked.parent)
            if not unpacked.is_dir():
                raise BronetError(f"{archive} must hold a folder {folder.name}, got none: get it again from {url}")
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error) as error:
        reason = " ".join(str(error).split())  # tarfile tells every format it tried in a line of its own
        raise BronetError(f"cannot unpack {archive} ({reason}): delete it and get it again from {url}") from None
    except OSError as error:
        raise BronetError(f"cannot unpack {archive} to {folder}: {error.strerror or error}; free some space") from None


@contextmanager
def unpacking(folder: Path) -> Iterator[Path]:
    """Yield a new path to be filled, which becomes `folder` if the block succeeds and is removed if it fails."""
    try:
        scratch = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}-"))
    except OSError as error:
        raise BronetError(f"cannot write to {folder.parent}: {error.strerror}; make the folder writable") from None
    try:
        unpacked = scratch / folder.name
        yield unpacked
        unpacked.chmod(PUBLIC_FOLDER_MODE)
        try:
            unpacked.rename(folder)
        except OSError:
            if not folder.is_dir():  # another process may have put the complete folder there
                raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _extract(archive: Path, folder: Path) -> None:
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as content:
            content.extractall(folder)
        return
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")

"""Fetch a file or an archive so that what appears under the final name is whole and checked, or absent.

A download goes to a temporary name, is checked, then renamed; the folder of an archive appears by one rename at the
end. So an interrupted run, a full disk or a second process doing the same leave nothing half-done. MD5 is what the
authors of CIFAR publish; it finds damage in transit, but does not stop an attacker. Archives are therefore unpacked
with care all the same, and hold plain bytes, never pickles. Our own files have a SHA-256.
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
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from bronet.errors import BronetError

CHUNK_BYTES = 1 << 20
TIMEOUT_SECONDS = 30.0
PUBLIC_FILE_MODE = 0o644
"""Temporary files are private; a data set is for everyone on the machine."""
PUBLIC_FOLDER_MODE = 0o755
"""Likewise of folders."""


class Digest(NamedTuple):
    """The hash that a file must have."""

    algorithm: Literal["md5", "sha256"]
    value: str


def download_file(url: str, destination: Path, digest: Digest) -> None:
    """Put the content of `url`, which has this digest, at `destination`; on any failure leave nothing there.

    Every failure is one line that names the file, where it can be had and where to put it by hand.
    """
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
    """Raise unless the file at `path` has this digest; the error speaks of `named` and ends with `remedy`."""
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
    with (
        _opened(url) as response,
        Progress(*columns, console=console, disable=not console.is_terminal) as progress,
    ):
        length = response.headers.get("Content-Length")
        task = progress.add_task(url.rsplit("/", 1)[-1], total=int(length) if length else None)
        while chunk := response.read(CHUNK_BYTES):
            file.write(chunk)
            progress.advance(task, len(chunk))


def _opened(url: str) -> http.client.HTTPResponse:
    try:
        response: http.client.HTTPResponse = urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS)
    except urllib.error.HTTPError as error:
        error.close()  # it is an open connection, too
        raise urllib.error.URLError(f"HTTP status {error.code}, {error.reason}") from None
    return response


def _reason(error: Exception) -> str:
    """One line without the brackets of urllib's nested errors."""
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    return " ".join(str(reason).split()) or type(error).__name__


def official_folder(name: str, folder: Path, archive: Path, *, md5: str, url: str, download: bool) -> Path:
    """Return the folder of an official data set; without it the archive is unpacked, and fetched first if allowed."""
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

    Members that point outside the folder, links out of it and special files are refused (tarfile's "data"
    filter) or stripped of what points outside (zipfile).
    """
    check_digest(archive, Digest("md5", md5), named=str(archive), remedy=f"delete it and get it again from {url}")
    try:
        with unpacking(folder) as unpacked:
            _extract(archive, unpacked.parent)
            if not unpacked.is_dir():
                raise BronetError(f"{archive} must hold a folder {folder.name}, got none: get it again from {url}")
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error) as error:
        raise BronetError(f"cannot unpack {archive} ({error}): delete it and get it again from {url}") from None
    except OSError as error:
        raise BronetError(f"cannot unpack {archive} to {folder}: {error.strerror or error}; free some space") from None


@contextmanager
def unpacking(folder: Path) -> Iterator[Path]:
    """Yield a path that does not exist yet, to be filled; it becomes `folder` at the end of a block that succeeds.

    Guaranteed: the path is new to every call, and nothing of it is left if the block fails or is interrupted.
    """
    try:
        scratch = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}-"))
    except OSError as error:
        raise BronetError(f"cannot write to {folder.parent}: {error.strerror}; make the folder writable") from None
    try:
        unpacked = scratch / folder.name
        yield unpacked
        unpacked.chmod(PUBLIC_FOLDER_MODE)
        _rename(unpacked, folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _extract(archive: Path, folder: Path) -> None:
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as content:
            content.extractall(folder)
        return
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")


def _rename(unpacked: Path, folder: Path) -> None:
    """Rename, unless another process has put the folder there meanwhile: it is then whole as well."""
    try:
        unpacked.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise

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
from typing import BinaryIO

from rich.console import Console
from rich.progress import wrap_file

from bronet.errors import BronetError

CHUNK_BYTES = 1 << 20
ALGORITHMS = {32: "md5", 64: "sha256"}
"""The hash whose digest has so many hexadecimal digits."""
TIMEOUT_SECONDS = 30.0
PUBLIC_FILE_MODE, PUBLIC_FOLDER_MODE = 0o644, 0o755
"""Temporary files and folders are private, but a data set is for all users of the machine."""


def download_file(url: str, destination: Path, digest: str) -> None:
    """Download `url`, which must have this MD5 or SHA-256, to `destination`; a failure leaves nothing there."""
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
        # urllib puts the reason into brackets inside its own error
        reason = " ".join(str(error.reason if isinstance(error, urllib.error.URLError) else error).split())
        told = reason or type(error).__name__
        raise BronetError(f"cannot download {url} ({told}): connect to the internet, {by_hand}") from None
    except OSError as error:
        raise BronetError(f"cannot write {destination}: {error.strerror}; free some space, {by_hand}") from None
    finally:
        part.unlink(missing_ok=True)


def check_digest(path: Path, digest: str, *, named: str, remedy: str) -> None:
    """Raise unless the file at `path` has this MD5 or SHA-256; the error names it as `named` and ends with `remedy`."""
    algorithm = ALGORITHMS[len(digest)]
    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, lambda: hashlib.new(algorithm, usedforsecurity=False)).hexdigest()
    except OSError as error:
        raise BronetError(f"cannot read {path} ({error.strerror}): {remedy}") from None
    if found != digest:
        raise BronetError(f"{named} must have {algorithm.upper()} {digest}, got {found}: {remedy}")


def _fetch(url: str, file: BinaryIO) -> None:
    console = Console(stderr=True)
    try:
        response: http.client.HTTPResponse = urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS)
    except urllib.error.HTTPError as error:
        error.close()  # it is an open connection
        raise urllib.error.URLError(f"HTTP status {error.code}, {error.reason}") from None
    name, size = url.rsplit("/", 1)[-1], int(response.headers.get("Content-Length", 0))
    with wrap_file(response, size, description=name, console=console, disable=not console.is_terminal) as shown:
        shutil.copyfileobj(shown, file, CHUNK_BYTES)


def unpack_archive(archive: Path, folder: Path, *, md5: str, url: str) -> None:
    """Make `folder` from the member of that name in the tar or zip file `archive`, whose MD5 is `md5`.

    Paths and links to places outside the folder, and special files, are refused (tarfile's "data" filter) or made
    relative to it (zipfile).
    """
    check_digest(archive, md5, named=str(archive), remedy=f"delete it and get it again from {url}")
    try:
        with unpacking(folder) as unpacked:
            if zipfile.is_zipfile(archive):
                with zipfile.ZipFile(archive) as content:
                    content.extractall(unpacked.parent)
            else:
                with tarfile.open(archive) as tar:
                    tar.extractall(unpacked.parent, filter="data")
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

"""Download files and unpack archives so that only complete, checked files appear under their final names.

Each download and each unpacked folder gets its final name by one rename at the end, so that an interruption, a full
disk or a second process leaves nothing incomplete. The authors of CIFAR publish an MD5, which detects damage in transit
but does not stop an attacker, so archives are not trusted when they are unpacked. Our own files have a SHA-256.
"""

import hashlib
import http.client
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

from rich.console import Console
from rich.progress import wrap_file

from bronet.errors import BronetError
from bronet.files import replace_file

ALGORITHMS = {32: "md5", 64: "sha256"}
"""The hash whose digest has so many hexadecimal digits."""
TIMEOUT_SECONDS = 30.0
PUBLIC_FOLDER_MODE = 0o755
"""Temporary folders are private, but a data set is for all users of the machine."""


def download_file(url: str, destination: Path, digest: str) -> None:
    """Download `url`, which must have this MD5 or SHA-256, to `destination`; a failure leaves nothing there."""
    by_hand = f"or download {url} elsewhere and put it at {destination}"

    def fetch(part: Path) -> None:
        try:
            _fetch(url, part)
        except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
            if isinstance(error, urllib.error.HTTPError):
                error.close()  # it is an open connection
            # urllib puts the reason into brackets inside its own error
            told = error.reason if type(error) is urllib.error.URLError else error
            reason = " ".join(str(told).split()) or type(error).__name__
            raise BronetError(f"cannot download {url} ({reason}): connect to the internet, {by_hand}") from None
        check_digest(part, digest, named=f"the download of {url}", remedy=f"try again, {by_hand}")

    replace_file(destination, fetch)


def _fetch(url: str, part: Path) -> None:
    console, name = Console(stderr=True), url.rsplit("/", 1)[-1]
    with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as response, part.open("wb") as file:
        size = int(response.headers.get("Content-Length", 0))
        with wrap_file(response, size, description=name, console=console, disable=not console.is_terminal) as shown:
            shutil.copyfileobj(shown, file)


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


def unpack_archive(archive: Path, folder: Path, *, md5: str, url: str) -> None:
    """Make `folder` from the member of that name in the tar or zip file `archive`, whose MD5 is `md5`.

    Paths and links to places outside the folder, and special files, are refused (tarfile's "data" filter) or made
    relative to it (zipfile).
    """
    again = f"delete it and get it again from {url}"
    check_digest(archive, md5, named=str(archive), remedy=again)
    try:
        with unpacking(folder) as unpacked:
            if zipfile.is_zipfile(archive):
                with zipfile.ZipFile(archive) as content:
                    content.extractall(unpacked.parent)
            else:
                with tarfile.open(archive) as tar:
                    tar.extractall(unpacked.parent, filter="data")
            if not unpacked.is_dir():
                raise BronetError(f"{archive} must hold a folder {folder.name}, got none: {again}")
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error) as error:
        reason = " ".join(str(error).split())  # tarfile tells every format it tried in a line of its own
        raise BronetError(f"cannot unpack {archive} ({reason}): {again}") from None


@contextmanager
def unpacking(folder: Path) -> Iterator[Path]:
    """Yield a new path to be filled, which becomes `folder` if the block succeeds and is removed if it fails."""
    try:
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as scratch:
            unpacked = Path(scratch) / folder.name
            yield unpacked
            unpacked.chmod(PUBLIC_FOLDER_MODE)
            try:
                unpacked.rename(folder)
            except OSError:
                if not folder.is_dir():  # another process may have put the complete folder there
                    raise
    except OSError as error:
        reason = error.strerror or error
        raise BronetError(f"cannot unpack to {folder} ({reason}): free some space or choose another folder") from None

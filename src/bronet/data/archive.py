"""Unpack an archive so that its folder is either whole or absent.

Not a paper item. The folder appears by one rename at the end, so an interrupted run, a full disk or a second
process doing the same leave nothing half-unpacked under the final name.
"""

import shutil
import tarfile
import tempfile
import zipfile
import zlib
from pathlib import Path

from bronet.data.download import Digest, check_digest
from bronet.errors import BronetError

PUBLIC_FOLDER_MODE = 0o755
"""A temporary folder's content may be private; a data set is for everyone on the machine."""


def unpack_archive(archive: Path, folder: Path, *, md5: str, url: str) -> None:
    """Make `folder` from the member of that name in the tar or zip file `archive`, whose MD5 is `md5`.

    Members that point outside the folder, links out of it and special files are refused (tarfile's "data"
    filter) or stripped of what points outside (zipfile).
    """
    check_digest(archive, Digest("md5", md5), named=str(archive), remedy=f"delete it and get it again from {url}")
    try:
        scratch = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}-"))
    except OSError as error:
        raise BronetError(f"cannot write to {folder.parent}: {error.strerror}; make the folder writable") from None
    try:
        _extract(archive, scratch)
        unpacked = scratch / folder.name
        if not unpacked.is_dir():
            raise BronetError(f"{archive} must hold a folder {folder.name}, got none: get it again from {url}")
        unpacked.chmod(PUBLIC_FOLDER_MODE)
        _rename(unpacked, folder)
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error) as error:
        raise BronetError(f"cannot unpack {archive} ({error}): delete it and get it again from {url}") from None
    except OSError as error:
        raise BronetError(f"cannot unpack {archive} to {folder}: {error.strerror or error}; free some space") from None
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

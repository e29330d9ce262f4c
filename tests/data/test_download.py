"""Downloads and archives: whole and checked, or one clear line and nothing left behind."""

import hashlib
import io
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from bronet.data.archive import download_file, unpack_archive
from bronet.errors import BronetError
from served_files import serving_files

CONTENT = bytes(range(256)) * 5000
URL = "https://example.org/set.tar.gz"
WRONG = "0" * 32


@pytest.fixture
def site(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A web server on this machine: its address, and the folder it serves."""
    root = tmp_path / "site"
    root.mkdir()
    with serving_files(root) as address:
        yield address, root


def _md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def test_a_download_arrives_whole_in_a_folder_it_makes(site: tuple[str, Path], tmp_path: Path) -> None:
    address, root = site
    (root / "set.bin").write_bytes(CONTENT)
    destination = tmp_path / "new" / "datasets" / "set.bin"
    download_file(f"{address}/set.bin", destination, _md5(CONTENT))
    assert destination.read_bytes() == CONTENT
    assert [path.name for path in destination.parent.iterdir()] == ["set.bin"]


def test_a_wrong_checksum_is_named_and_the_old_file_stays(site: tuple[str, Path], tmp_path: Path) -> None:
    address, root = site
    (root / "set.bin").write_bytes(CONTENT[:-1])
    destination = tmp_path / "datasets" / "set.bin"
    destination.parent.mkdir()
    destination.write_bytes(b"old")
    with pytest.raises(BronetError, match=f"must have MD5 {_md5(CONTENT)}, got {_md5(CONTENT[:-1])}"):
        download_file(f"{address}/set.bin", destination, _md5(CONTENT))
    assert destination.read_bytes() == b"old"
    assert [path.name for path in destination.parent.iterdir()] == ["set.bin"]


def test_a_missing_page_is_one_line_that_says_what_to_put_where(site: tuple[str, Path], tmp_path: Path) -> None:
    address, _ = site
    destination = tmp_path / "datasets" / "set.bin"
    with pytest.raises(BronetError) as caught:
        download_file(f"{address}/set.bin", destination, WRONG)
    message = str(caught.value)
    assert "\n" not in message
    assert "HTTP Error 404" in message
    assert re.search(f"download {address}/set.bin .*{destination}", message)
    assert not list(destination.parent.iterdir())


def test_no_connection_is_one_line_that_says_what_to_put_where(tmp_path: Path) -> None:
    # Port 1 is reserved and closed: the connection is refused at once.
    with pytest.raises(BronetError, match=r"cannot download .* refused.*set\.bin"):
        download_file("http://127.0.0.1:1/set.bin", tmp_path / "set.bin", WRONG)
    assert not list(tmp_path.iterdir())


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(BronetError, match=r"could not write .*file/datasets"):
        download_file("http://127.0.0.1:1/set.bin", tmp_path / "file" / "datasets" / "set.bin", WRONG)


def _archive(path: Path, members: dict[str, bytes]) -> str:
    """Write a compressed tar file with these members; return its MD5."""
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return _md5(path.read_bytes())


def _names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_an_archive_becomes_its_folder_and_nothing_else(tmp_path: Path) -> None:
    archive = tmp_path / "set.tar.gz"
    md5 = _archive(archive, {"set/a.bin": CONTENT, "set/b.txt": b"names"})
    unpack_archive(archive, tmp_path / "set", md5=md5, url=URL)
    assert (tmp_path / "set" / "a.bin").read_bytes() == CONTENT
    assert _names(tmp_path) == {"set", "set.tar.gz"}


def test_a_damaged_archive_is_not_unpacked(tmp_path: Path) -> None:
    archive = tmp_path / "set.tar.gz"
    md5 = _archive(archive, {"set/a.bin": CONTENT})
    archive.write_bytes(archive.read_bytes()[:-10])
    with pytest.raises(BronetError, match=rf"set.tar.gz must have MD5 {md5}.*get it again from {URL}"):
        unpack_archive(archive, tmp_path / "set", md5=md5, url=URL)
    assert _names(tmp_path) == {"set.tar.gz"}


def test_an_archive_that_breaks_off_leaves_nothing_half_unpacked(tmp_path: Path) -> None:
    archive = tmp_path / "set.tar.gz"
    _archive(archive, {"set/a.bin": CONTENT, "set/b.bin": CONTENT[::-1]})
    archive.write_bytes(archive.read_bytes()[:-100])
    with pytest.raises(BronetError, match=r"cannot unpack .*set.tar.gz"):
        unpack_archive(archive, tmp_path / "set", md5=_md5(archive.read_bytes()), url=URL)
    assert _names(tmp_path) == {"set.tar.gz"}


def test_an_archive_cannot_write_outside_its_folder(tmp_path: Path) -> None:
    data_dir = tmp_path / "datasets"
    data_dir.mkdir()
    archive = data_dir / "set.tar.gz"
    md5 = _archive(archive, {"set/a.bin": CONTENT, "../../escaped.bin": CONTENT})
    with pytest.raises(BronetError, match=r"cannot unpack .*escaped.bin"):
        unpack_archive(archive, data_dir / "set", md5=md5, url=URL)
    assert _names(data_dir) == {"set.tar.gz"}
    assert _names(tmp_path) == {"datasets"}


def test_an_archive_of_something_else_is_named(tmp_path: Path) -> None:
    archive = tmp_path / "set.tar.gz"
    md5 = _archive(archive, {"other/a.bin": CONTENT})
    with pytest.raises(BronetError, match="must hold a folder set, got none"):
        unpack_archive(archive, tmp_path / "set", md5=md5, url=URL)
    assert _names(tmp_path) == {"set.tar.gz"}


def test_a_folder_that_another_process_unpacked_meanwhile_is_kept(tmp_path: Path) -> None:
    archive = tmp_path / "set.tar.gz"
    md5 = _archive(archive, {"set/a.bin": CONTENT})
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "a.bin").write_bytes(CONTENT)
    unpack_archive(archive, tmp_path / "set", md5=md5, url=URL)
    assert _names(tmp_path) == {"set", "set.tar.gz"}

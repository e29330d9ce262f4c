"""Rows: the same bits come back, a file is whole or absent, and a damaged one names its line."""

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bronet.errors import BronetError
from bronet.files import replace_bytes
from bronet.records import write_rows
from bronet.run.certificate import Row, read_certificate_rows


def _row(index: int = 0, *, label: int = 1, prediction: int = 1, radius: float = 0.1) -> Row:
    return Row(
        index=index,
        label=label,
        prediction=prediction,
        correct=label == prediction,
        margin=1 / 3,
        radius=radius,
        naive_radius=radius,
    )


HEADER = "index,label,prediction,correct,margin,radius,naive_radius"
classes = st.integers(min_value=0, max_value=999)
radii = st.floats(min_value=0, allow_nan=False)


@given(label=classes, prediction=classes, margin=st.floats(allow_nan=False), radius=radii, naive=radii)
def test_rows_come_back_with_the_same_bits(
    *, tmp_path_factory: pytest.TempPathFactory, label: int, prediction: int, margin: float, radius: float, naive: float
) -> None:
    row = Row(
        index=7,
        label=label,
        prediction=prediction,
        correct=label == prediction,
        margin=margin,
        radius=radius,
        naive_radius=naive,
    )
    path = tmp_path_factory.getbasetemp() / "certificate.csv"
    write_rows(Row, path, [row])
    assert read_certificate_rows(path) == [row]


def test_the_file_is_plain_csv(tmp_path: Path) -> None:
    write_rows(Row, tmp_path / "rows.csv", [_row(), _row(1, prediction=2, radius=0.0)])
    assert (tmp_path / "rows.csv").read_text() == (
        "index,label,prediction,correct,margin,radius,naive_radius\n"
        "0,1,1,1,0.3333333333333333,0.1,0.1\n"
        "1,1,2,0,0.3333333333333333,0.0,0.0\n"
    )


def test_a_margin_that_is_not_a_number_survives(tmp_path: Path) -> None:
    broken = Row(index=0, label=0, prediction=0, correct=True, margin=math.nan, radius=0.0, naive_radius=0.0)
    write_rows(Row, tmp_path / "rows.csv", [broken])
    assert math.isnan(read_certificate_rows(tmp_path / "rows.csv")[0].margin)


def test_no_rows_make_a_file_with_a_header(tmp_path: Path) -> None:
    write_rows(Row, tmp_path / "rows.csv", [])
    assert read_certificate_rows(tmp_path / "rows.csv") == []


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("0,1,1,1,0.5,0.1", "line 3: must have 7 values, got 6"),
        ("0,1,1,1,0.5,0.1,x", "line 3: naive_radius must be a number, got 'x'"),
        ("zero,1,1,1,0.5,0.1,0.1", "line 3: index must be a whole number, got 'zero'"),
        ("0,1,1,yes,0.5,0.1,0.1", "line 3: correct must be 0 or 1, got 'yes'"),
        ("0,1,2,1,0.5,0.1,0.1", "line 3: correct must be 0, got 1"),
        ("0,1,1,1,0.5,-0.1,0.1", "line 3: radius must be at least 0, got -0.1"),
        ("0,1,1,1,0.5,0.1,nan", "line 3: naive_radius must be at least 0, got nan"),
        ("-1,1,1,1,0.5,0.1,0.1", "line 3: index must be at least 0, got -1"),
        ("5,1,1,1,0.5,0.1,0.1", "line 3: index must be unique, got 5 again"),
    ],
)
def test_a_damaged_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("\n".join([HEADER, "5,1,1,1,0.5,0.1,0.1", line]) + "\n")
    with pytest.raises(BronetError) as error:
        read_certificate_rows(path)
    assert str(path) in str(error.value)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("content", [b"", b"a,b\n1,2\n", b"\xff\xfe\x00"])
def test_a_foreign_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(content)
    with pytest.raises(BronetError, match=r"rows\.csv"):
        read_certificate_rows(path)


def test_a_missing_file_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(BronetError, match="run `bronet certify` first"):
        read_certificate_rows(tmp_path / "absent.csv")


def test_a_failure_keeps_the_old_file_and_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    write_rows(Row, path, [_row()])

    def interrupted() -> list[Row]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_rows(Row, path, (row for row in interrupted()))
    assert read_certificate_rows(path) == [_row()]
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_cannot_be_written_is_one_clear_line(tmp_path: Path) -> None:
    target = tmp_path / "folder"
    target.mkdir()
    with pytest.raises(BronetError, match=r"could not write .*folder.* make that place writable and try again"):
        replace_bytes(target, b"content")
    assert list(tmp_path.iterdir()) == [target]

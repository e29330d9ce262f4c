"""A JSON file of a run that is damaged or hostile is told in one line, by every command that reads it."""

from pathlib import Path

import pytest

from bronet import BronetError
from bronet.files import MAX_DIGITS, read_object
from bronet.report.evidence import read_evidence
from bronet.run.attack_rows import read_attack
from bronet.run.certificate import read_certificate

HOSTILE = {
    "empty": (b"", "must be JSON"),
    "cut short": (b'{"a": ', "must be JSON"),
    "no text": (b"\xff\xfe", "cannot read"),
    "nested": (b"[" * 100_000, "nested too deeply"),
    "long number": (b'{"a": ' + b"9" * 5_000 + b"}", "a number has 5000 digits"),
    "beyond a float": (b'{"a": ' + b"9" * 400 + b"}", "a number has 400 digits"),
    "half a pair": (b'{"a": "\\ud800"}', "half of a surrogate pair"),
    "a key twice": (b'{"a": 1, "b": {"c": 1, "c": 2}}', "the key 'c' is given twice"),
    "a list": (b"[]", "must hold a JSON object, got list"),
}


@pytest.mark.parametrize(("content", "message"), HOSTILE.values(), ids=list(HOSTILE))
def test_a_hostile_file_is_one_line_that_names_it(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "certificate.json"
    path.write_bytes(content)
    for read in (read_attack, read_certificate, read_object, lambda path: read_evidence(path.parent)):
        with pytest.raises(BronetError, match=message) as error:
            read(path)
        assert str(path) in str(error.value)
        assert "\n" not in str(error.value)


def test_a_whole_pair_and_the_longest_number_come_back(tmp_path: Path) -> None:
    path = tmp_path / "facts.json"
    path.write_text('{"pair": "\\ud83d\\ude00", "number": ' + "9" * MAX_DIGITS + "}")
    assert read_object(path, advice="") == {"pair": "\U0001f600", "number": 10**MAX_DIGITS - 1}

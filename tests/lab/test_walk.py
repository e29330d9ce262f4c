"""The data walk counts files in which functions run, and nothing else."""

import threading

import pytest

from bronet.errors import BronetError
from bronet.radius import implied_radius
from lab.walk import files_of, walk

pytestmark = pytest.mark.usefixtures("one_thread")


def test_a_function_counts_in_any_thread_and_another_package_does_not() -> None:
    def call() -> float:
        return implied_radius(1.0, norm="l1", pixels=4)

    assert files_of(call) == {"radius.py": 1}
    thread = threading.Thread(target=call)
    assert files_of(lambda: (thread.start(), thread.join())) == {"radius.py": 1}
    assert files_of(lambda: sorted([2, 1], key=lambda value: value)) == {}


def test_the_walk_of_a_certificate_passes_through_the_proof_and_not_through_training() -> None:
    files = walk("certify")
    assert {"cli/certify.py", "proof/proved_map.py", "radius.py"} <= files.keys()
    assert not any(file.startswith(("training/", "losses.py", "attack/", "web/")) for file in files)


def test_an_unknown_walk_is_refused() -> None:
    with pytest.raises(BronetError, match="must be one of train, certify, got swim"):
        walk("swim")

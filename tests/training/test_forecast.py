"""What a training would take: measured on real steps, with nothing written."""

import re
import time
from pathlib import Path

import pytest

from bronet.errors import BronetError
from bronet.training import forecast
from bronet.training.statistics import Display, Summary
from tiny_run import EPOCHS, STEPS_PER_EPOCH, build, tiny_recipe

pytestmark = pytest.mark.usefixtures("one_thread")


def test_a_forecast_counts_and_times_real_steps_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    recipe = tiny_recipe()
    found = forecast(recipe)
    assert found.parameters == sum(parameter.numel() for parameter in build(recipe).parameters())
    assert found.steps == EPOCHS * STEPS_PER_EPOCH
    assert 1 <= found.measured < found.steps
    assert found.seconds == found.steps * found.step_seconds > 0
    assert found.peak_gib is None or found.peak_gib > 0.01
    assert list(tmp_path.iterdir()) == []


def test_a_forecast_counts_the_lessons_of_a_teacher() -> None:
    found = forecast(tiny_recipe("loss.teacher=0.5", "loss.teacher_epochs=1", "train.epochs=1"))
    assert found.teacher_seconds > 0
    assert found.seconds == found.steps * found.step_seconds + found.teacher_seconds


def test_what_cannot_be_trained_has_no_forecast() -> None:
    with pytest.raises(BronetError, match="must be float32 on a CPU"):
        forecast(tiny_recipe("train.precision=bf16"))


def test_the_time_left_follows_from_all_steps_and_is_gone_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    display = Display(enabled=True, total_steps=1000)
    for step in (1, 3, 999, 1000):
        display.update(step=step, summary=Summary(0.0, 0.0, 0.0), images_per_second=1.0)
        display.epoch(f"after {step}")
        time.sleep(0.01)
    first, *between, last = capsys.readouterr().out.splitlines()
    assert (first, last) == (
        "after 1",
        "after 1000",
    )  # of a single moment no speed is known, and at the end none is left
    assert all(re.fullmatch(r"after \d+  0:00:\d\d left", line) for line in between)

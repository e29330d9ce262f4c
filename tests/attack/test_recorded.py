"""A network that is recorded for a search gives the logits and gradients that it gave before."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from bronet.attack.network import (
    MAX_RECORDINGS,
    ORDINARY_CALLS,
    Recorded,
    Recorder,
    Work,
    in_half_precision,
    recorded_on_gpu,
)
from bronet.attack.search import l2_pgd
from bronet.layers import frozen
from bronet.models import CertifiableModel, build_model
from bronet.recipe import named_recipe

RECIPE = named_recipe("digits/quickstart")
SPEC = RECIPE.data.spec()
gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

pytestmark = pytest.mark.usefixtures("one_thread")


def network(device: str = "cpu") -> CertifiableModel:
    return build_model(RECIPE.model, SPEC, device=device).eval().requires_grad_(False)


def images(count: int, seed: int = 0, device: str = "cpu") -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(count, SPEC.channels, SPEC.height, SPEC.width, generator=generator).to(device)


def by_doing_it_again() -> Recorder:
    """What a CPU has for a recording: the work itself, into the same places."""

    def record(work: Work) -> Work:
        work()
        return work

    return record


def warm(model: CertifiableModel) -> Recorded:
    """Return the network, recorded for three images."""
    replayed = Recorded(model, by_doing_it_again)
    for seed in range(ORDINARY_CALLS + 1):
        replayed(images(3, seed))
    assert list(replayed.recordings) == [images(3).shape]
    return replayed


def gradient(model: Callable[[Tensor], Tensor], pixels: Tensor, weights: Tensor) -> Tensor:
    seen = pixels.clone().requires_grad_()
    return torch.autograd.grad((weights * model(seen)).sum(), seen)[0]


def test_logits_and_gradients_are_those_of_the_network() -> None:
    model = network()
    replayed = warm(model)
    for seed in (7, 8):
        pixels, weights = images(3, seed), torch.randn(3, SPEC.classes)
        assert torch.equal(replayed(pixels), model(pixels))
        assert torch.equal(gradient(replayed, pixels, weights), gradient(model, pixels, weights))


def test_results_stay_what_they_are_when_the_recording_is_replayed() -> None:
    model = network()
    replayed = warm(model)
    weights = torch.randn(3, SPEC.classes)
    first, slope = replayed(images(3, 1)), gradient(replayed, images(3, 1), weights)
    replayed(images(3, 2))
    gradient(replayed, images(3, 2), weights)
    assert torch.equal(first, model(images(3, 1)))
    assert torch.equal(slope, gradient(model, images(3, 1), weights))


def test_gradients_asked_for_late_or_twice_are_those_of_their_own_pixels() -> None:
    model = network()
    replayed = warm(model)
    early, weights = images(3, 1).requires_grad_(), torch.randn(3, SPEC.classes)
    loss = (weights * replayed(early)).sum()
    replayed(images(3, 2))
    own = gradient(model, images(3, 1), weights)
    for _ in range(2):
        assert torch.equal(torch.autograd.grad(loss, early, retain_graph=True)[0], own)


def test_sizes_that_pass_are_not_recorded_and_old_recordings_go() -> None:
    replayed = Recorded(network(), by_doing_it_again)
    for count in range(1, MAX_RECORDINGS + 3):
        for _ in range(ORDINARY_CALLS):
            replayed(images(count))
        assert images(count).shape not in replayed.recordings
        replayed(images(count))
        assert images(count).shape in replayed.recordings
    assert [size[0] for size in replayed.recordings] == list(range(3, MAX_RECORDINGS + 3))


def test_nothing_is_computed_for_the_first_time_while_it_is_recorded() -> None:
    """A GPU refuses to load a kernel then; the searches' own checks ask for logits alone."""
    seen: list[str] = []

    def model(pixels: Tensor) -> Tensor:
        seen.append("forward")
        logits = pixels.flatten(1)[:, :2] * 3
        if logits.requires_grad:
            logits.register_hook(lambda gradient: seen.append("backward"))
        return logits

    def recorder() -> Recorder:
        assert "backward" in seen
        return by_doing_it_again()

    replayed = Recorded(model, recorder)
    with torch.no_grad():
        for _ in range(ORDINARY_CALLS + 1):
            replayed(images(3))
    assert list(replayed.recordings) == [images(3).shape]


def test_work_is_recorded_on_the_device_it_runs_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA is played here: a graph of another device would be empty, and replaying it do nothing."""
    asked: list[object] = []

    def device(place: torch.device) -> AbstractContextManager[None]:
        asked.append(place)
        return nullcontext()

    def graph(_graph: object, *, pool: object, stream: object) -> AbstractContextManager[None]:
        asked.append(stream)
        return nullcontext()

    monkeypatch.setattr(torch.cuda, "device", device)
    monkeypatch.setattr(torch.cuda, "graph", graph)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: SimpleNamespace(replay=lambda: None))
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 1))
    monkeypatch.setattr("bronet.attack.network._recording_stream", lambda place: f"stream of {place}")
    place = torch.device("cuda", 1)
    recorded_on_gpu(network(), place).new_recorder()(lambda: None)
    assert asked == [place, "stream of cuda:1"]


def test_what_cannot_be_recorded_is_computed_as_before_and_not_tried_again() -> None:
    tried = []

    def in_vain() -> Recorder:
        def record(_: Work) -> Work:
            tried.append(1)
            raise torch.OutOfMemoryError("no memory is left")

        return record

    model = network()
    replayed = Recorded(model, in_vain)
    for seed in range(ORDINARY_CALLS + 3):
        assert torch.equal(replayed(images(3, seed)), model(images(3, seed)))
    assert len(tried) == 1
    assert replayed.recordings == {images(3).shape: None}


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize("half", [True, False])
def test_a_cuda_graph_gives_what_the_network_gave(half: bool) -> None:
    model = network("cuda")
    with frozen(model):
        plain = in_half_precision(model) if half else model
        replayed = recorded_on_gpu(plain, torch.device("cuda"))
        with torch.no_grad():  # one size is recorded before its first gradient
            for _ in range(ORDINARY_CALLS + 1):
                replayed(images(7, device="cuda"))
        assert list(replayed.recordings) == [images(7).shape]
        for seed in range(ORDINARY_CALLS + 4):
            for count in (5, 7, 40):
                pixels = images(count, seed, "cuda")
                weights = torch.randn(count, SPEC.classes, device="cuda")
                own, ours = gradient(plain, pixels, weights), gradient(replayed, pixels, weights)
                assert (ours - own).norm() <= 1e-3 * own.norm()
                assert (replayed(pixels) - plain(pixels)).norm() <= 1e-3 * plain(pixels).norm()
        assert len(replayed.recordings) == 3


@pytest.mark.gpu
@gpu
def test_a_search_finds_the_same_through_a_recording() -> None:
    model = network("cuda")
    pixels, labels = images(16, device="cuda"), torch.zeros(16, dtype=torch.int64, device="cuda")
    with frozen(model):
        own = l2_pgd(model, pixels, labels, eps=0.5, steps=30)
        ours = l2_pgd(recorded_on_gpu(model, torch.device("cuda")), pixels, labels, eps=0.5, steps=30)
    assert (own.images - ours.images).abs().amax() <= 1e-3

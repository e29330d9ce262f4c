"""A proof owns all that it computes with: nothing done to the model afterwards reaches it."""

import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.nn.utils import prune

from bronet import BronetError, Chain, build_model, check, prove
from bronet.layers import Flatten, LastLayerNormalized, LipschitzLayer, MaxMin
from bronet.models import CertifiableModel
from bronet.proof.proved_map import ProvedMap, exact, held_by
from bronet.recipe.architecture import NAMED
from bronet.recipe.schema import DATASETS
from hostile import LAYERS, hostile

Registration = Callable[[], torch.utils.hooks.RemovableHandle]


@pytest.mark.parametrize("name", LAYERS)
def test_the_proved_program_holds_no_module_and_no_memory_of_the_layer(name: str) -> None:
    layer, shape = hostile(name, "normal", 0), LAYERS[name][1]
    own = {tensor.untyped_storage().data_ptr() for tensor in (*layer.parameters(), *layer.buffers())}
    for thing in held_by(layer.proved(shape).apply):
        assert not isinstance(thing, nn.Module), thing
        if isinstance(thing, Tensor):
            assert thing.untyped_storage().data_ptr() not in own


@pytest.mark.parametrize("name", LAYERS)
def test_hooks_registered_after_the_proof_do_not_reach_the_proved_program(name: str) -> None:
    layer, shape = hostile(name, "normal", 0), LAYERS[name][1]
    proved = layer.proved(shape)
    x = torch.randn(2, *shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    before = proved.apply(x)
    handles = [part.register_forward_hook(lambda _module, _inputs, output: 100 * output) for part in layer.modules()]
    handles += [part.register_forward_pre_hook(lambda _module, inputs: (inputs[0] + 1,)) for part in layer.modules()]
    handles.append(register_module_forward_hook(lambda _module, _inputs, output: 100 * output))
    try:
        assert torch.equal(proved.apply(x), before)
    finally:
        for handle in handles:
            handle.remove()


@pytest.fixture(scope="module")
def model() -> CertifiableModel:
    return build_model(NAMED["bronet-digits"], DATASETS["digits"], seed=0).eval()


def test_hooks_on_every_part_after_the_proof_leave_the_certificate_as_it_was(model: CertifiableModel) -> None:
    network, images = prove(model), torch.rand(8, 1, 8, 8, dtype=torch.float64)
    before = network.certify(images)
    handles = [part.register_forward_hook(lambda _module, _inputs, output: -output) for part in model.modules()]
    handles.append(register_module_forward_hook(lambda _module, _inputs, output: 100 * output))
    try:
        after = network.certify(images)
    finally:
        for handle in handles:
            handle.remove()
    assert torch.equal(after.prediction, before.prediction)
    assert torch.equal(after.radius, before.radius)


@pytest.mark.parametrize(
    "register",
    [
        lambda: register_module_forward_hook(lambda _module, _inputs, output: 100 * output),
        lambda: register_module_forward_pre_hook(lambda _module, inputs: (2 * inputs[0],)),
    ],
    ids=["forward", "before"],
)
def test_a_global_hook_is_refused(
    model: CertifiableModel, register: Callable[[], torch.utils.hooks.RemovableHandle]
) -> None:
    handle = register()
    try:
        with pytest.raises(BronetError, match="global"):
            prove(model)
        assert not check(model).certifiable
    finally:
        handle.remove()


class LouderCall(MaxMin):
    def __call__(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return 100 * super().__call__(x)


def _small(layer: LipschitzLayer) -> Chain:
    return Chain((1, 2, 2), {"flatten": Flatten(), "layer": layer}, LastLayerNormalized(4, 3))


def _with_replaced_method() -> Chain:
    layer = MaxMin()
    layer._call_impl = lambda x: 100 * x  # type: ignore[method-assign]
    return _small(layer)


def _with_pruned_head() -> Chain:
    chain = _small(MaxMin())
    prune.random_unstructured(chain.head, "weight", amount=0.5)
    return chain


@pytest.mark.parametrize(
    "make", [lambda: _small(LouderCall()), _with_replaced_method, _with_pruned_head], ids=["call", "method", "pruned"]
)
def test_other_ways_of_being_called_are_refused(make: Callable[[], Chain]) -> None:
    chain = make()
    with pytest.raises(BronetError, match="must be its class's own"):
        prove(chain)
    assert not check(chain).certifiable


class Open(MaxMin):
    """A layer whose proved map is its own forward, which hooks and settings can change later."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)

    def proved(self, shape: tuple[int, ...]) -> ProvedMap:
        return exact(self.forward, shape)


def test_a_proved_map_that_refers_to_a_module_is_refused() -> None:
    with pytest.raises(BronetError, match="refers to a Open"):
        prove(_small(Open()))


@dataclass(frozen=True, slots=True)
class Slotted:
    part: object


def _yielded(module: nn.Module) -> Iterator[nn.Module]:
    while True:
        yield module


HIDING = [Slotted, lambda module: deque([module]), lambda module: Slotted(deque([module])), weakref.ref, _yielded]


@pytest.mark.parametrize("hide", HIDING)
def test_a_module_is_found_in_whatever_holds_it(hide: Callable[[nn.Module], object]) -> None:
    module = nn.ReLU()
    held = hide(module)
    assert module in held_by(lambda x: (x, held)[0])

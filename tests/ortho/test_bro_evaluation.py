"""Every form in which a CPU trains and evaluates equals the textbook form; a memory order changes no number."""

import inspect
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from bronet.ortho import bro_evaluation, products
from bronet.ortho.bro_by_frequency import FrequencyReflection
from bronet.ortho.bro_convolution import Geometry, Windows, contiguous_batch_last, pixels_first, reflect_images
from bronet.ortho.bro_evaluation import ByFactor, ByFrequency, ByPixels, Form, InSpace, Shapes, evaluation_form
from bronet.ortho.bro_in_space import SpatialReflection, fits
from bronet.ortho.bro_training import training_form
from bronet.ortho.products import product
from bronet.ortho.reflector import dense_inverse, evaluate, evaluation_factors, reflect, textbook_bro_convolution

RIDGE = 1e-3


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def geometry_for(size: tuple[int, int], c_out: int, padding: int, *, keep: bool = False) -> Geometry:
    return Geometry(Windows.of(size, padding, keep_padding=keep), c_out, RIDGE, dense=False)


@pytest.mark.parametrize("size", [(6, 7), (3, 2), (1, 4)])
@pytest.mark.parametrize(("c_in", "c_out"), [(4, 4), (3, 6), (6, 3)])
@pytest.mark.parametrize(("k", "padding"), [(1, 1), (2, 1), (3, 1), (3, 2), (5, 2)])
@pytest.mark.parametrize("form", ["space", "frequency, dense", "frequency, separable"])
def test_every_form_of_training_equals_the_textbook_form_with_its_gradients(
    size: tuple[int, int], c_in: int, c_out: int, k: int, padding: int, form: str
) -> None:
    geometry = replace(geometry_for(size, c_out, padding), dense=form.endswith("dense"))
    assert fits(geometry, (k, k))
    x, V = draw(2, c_in, *size).requires_grad_(), draw(max(c_in, c_out), 2, k, k, seed=1).requires_grad_()
    y = (SpatialReflection if form == "space" else FrequencyReflection).apply(x, V, geometry)
    # The ridge follows the scale of the largest entry, a constant to the gradient.
    expected = textbook_bro_convolution(x, V, c_out=c_out, padding=padding, ridge=RIDGE)
    assert_close(y, expected)
    g = draw(*expected.shape, seed=2)
    for ours, theirs in zip(
        torch.autograd.grad((y * g).sum(), (x, V)), torch.autograd.grad((expected * g).sum(), (x, V)), strict=True
    ):
        assert_close(ours, theirs)


def test_images_that_wrap_around_have_no_form_in_space() -> None:
    assert not fits(geometry_for((6, 6), 4, 0), (3, 3))
    assert not fits(geometry_for((6, 6), 4, 1), (5, 5))
    assert not fits(geometry_for((6, 6), 4, 1, keep=True), (3, 3))
    form = training_form(draw(1, 4, 6, 6), draw(4, 2, 3, 3), geometry_for((6, 6), 4, 0))
    assert form is None or form.reflection is not SpatialReflection


def test_a_training_step_takes_the_form_with_the_least_work() -> None:
    def chosen(c: int, n: int, side: int, *, keep: bool = False) -> object:
        x, V = torch.zeros(1).expand(64, c, side, side), torch.zeros(1).expand(c, n, 3, 3)
        form = training_form(x, V, geometry_for((side, side), c, 1, keep=keep))
        return form and form.reflection

    assert chosen(64, 16, 32) is SpatialReflection
    assert chosen(512, 500, 2) is FrequencyReflection
    assert chosen(512, 500, 2, keep=True) is None


@pytest.fixture(params=["onednn", "this machine's own"])
def through(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let products go through oneDNN, whatever the processor, or as they do on this one."""
    if request.param == "onednn":
        monkeypatch.setattr(products, "has_fast_blas", lambda: False)
        monkeypatch.setattr(products, "_product_through_onednn", inspect.unwrap(products._product_through_onednn))


@pytest.mark.usefixtures("through")
def test_large_products_equal_those_of_the_blas_in_every_memory_order() -> None:
    A, B = draw(200, 80).float(), draw(80, 300, seed=1).float()
    expected = (A.double() @ B.double()).float()
    for left, right in ((A, B), (A.mT.contiguous().mT, B), (A, B.mT.contiguous().mT), (A[None], B[None, None])):
        assert left.numel() * right.shape[-1] >= 2**20  # what oneDNN takes
        assert_close(product(left, right), expected.expand(*max(left.shape[:-2], right.shape[:-2], key=len), -1, -1))


@pytest.mark.usefixtures("through")
def test_batches_of_large_products_equal_those_of_the_blas_with_their_shapes() -> None:
    A, B = draw(2, 3, 200, 80).float(), draw(2, 3, 80, 300, seed=1).float()
    assert_close(product(A, B), (A.double() @ B.double()).float())
    assert_close(product(A[0, 0], B), (A[0, 0].double() @ B.double()).float())


@pytest.mark.parametrize("error", [AttributeError, RuntimeError, TypeError])
def test_products_are_the_same_where_torch_has_no_onednn(monkeypatch: pytest.MonkeyPatch, error: type) -> None:
    """A build without the operator, one whose operator refuses this processor, and one that calls it otherwise."""

    def absent(*arguments: object) -> Tensor:
        raise error

    monkeypatch.setattr(products, "has_fast_blas", lambda: False)
    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", absent)
    search = inspect.unwrap(products._product_through_onednn)
    assert search() is None
    monkeypatch.setattr(products, "_product_through_onednn", search)
    A, B = draw(200, 80).float(), draw(80, 300, seed=1).float()
    assert torch.equal(product(A, B), A @ B)


@pytest.mark.parametrize("images", [1, 3, 20])
@pytest.mark.parametrize(("c_in", "c_out"), [(4, 4), (3, 6), (6, 3)])
@pytest.mark.parametrize("keep", [False, True])
def test_every_form_of_evaluation_equals_the_textbook_form(images: int, c_in: int, c_out: int, keep: bool) -> None:
    x, V = draw(images, c_in, 5, 4), draw(max(c_in, c_out), 2, 3, 3, seed=1)
    geometry = geometry_for((5, 4), c_out, 1, keep=keep)
    dense = replace(geometry, dense=True)
    forms: list[Form] = [ByFactor(geometry), ByFrequency(dense, few=True), ByFrequency(dense, few=False)]
    if not keep:
        forms += [ByPixels(dense), InSpace(geometry)]
    expected = textbook_bro_convolution(x, V, c_out=c_out, keep_padding=keep, ridge=RIDGE)
    for form in forms:
        assert_close(form.apply(x, form.derive(V, c_in)), expected, msg=lambda text, form=form: f"{form}: {text}")


@pytest.mark.parametrize("fast", [False, True])
def test_the_form_follows_the_shapes(fast: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small images of many channels want matrices, large ones convolutions; a GPU keeps its factor."""
    monkeypatch.setattr(bro_evaluation, "has_fast_blas", lambda: fast)
    monkeypatch.setattr(bro_evaluation, "_cheapest", inspect.unwrap(bro_evaluation._cheapest))

    def chosen(images: int, c: int, n: int, side: int) -> type[Form]:
        x, V = torch.zeros(1).expand(images, c, side, side), torch.zeros(1).expand(c, n, 3, 3)
        return type(evaluation_form(x, V, geometry_for((side, side), c, 1)))

    assert chosen(64, 32, 4, 64) is InSpace
    assert chosen(1, 512, 511, 1) is ByPixels
    assert chosen(64, 256, 255, 8) is ByFrequency
    costs = [InSpace(geometry_for((8, 8), 8, 1)).cost(Shapes(b, 8, 8, 2, 3)) for b in (1, 2, 4)]
    assert costs == sorted(costs)


@pytest.mark.parametrize("rank", [1, 5])
@pytest.mark.parametrize(("c_in", "c_out"), [(6, 6), (4, 6), (6, 4)])
def test_what_evaluates_a_dense_reflector_is_the_reflector(c_in: int, c_out: int, rank: int) -> None:
    x, V = draw(c_in, 3), draw(6, rank, seed=1)
    expected = reflect(x, V, dense_inverse(V, ridge=0.0), c_out=c_out, ridge=0.0)
    assert_close(evaluate(x.mT, evaluation_factors(V, c_in, c_out, ridge=0.0)).mT, expected)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 3, 1), (2, 3, 1, 0), (1, 0, 3, 2)])
def test_another_memory_order_holds_the_same_numbers(order: tuple[int, ...]) -> None:
    shape = torch.tensor([3, 4, 2, 5])
    x = draw(*shape[list(order)].tolist()).permute(*torch.tensor(order).argsort().tolist())
    assert pixels_first(x).is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(pixels_first(x), x)
    assert contiguous_batch_last(x).is_contiguous()
    assert torch.equal(contiguous_batch_last(x).permute(3, 2, 0, 1), x)
    y = x.clone().requires_grad_()
    assert torch.equal(torch.autograd.grad((contiguous_batch_last(y) * contiguous_batch_last(x)).sum(), y)[0], x)


def test_reflecting_images_does_not_depend_on_their_memory_order() -> None:
    x, V = draw(2, 4, 5, 5), draw(4, 2, 3, 3)
    geometry = geometry_for((5, 5), 4, 1)
    assert torch.equal(reflect_images(x, V, geometry), reflect_images(pixels_first(x), V, geometry))

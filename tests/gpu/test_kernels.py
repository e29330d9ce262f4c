"""On a GPU: kernels equal their torch twins, and the fast path the float64 textbook form, within its precision."""

import pytest
import torch
from torch.testing import assert_close

from bronet import BROConv2d
from bronet.layers import Bias, Block, BROLinear, Centring, CholeskyLinear, MaxMin
from bronet.layers.execution import SideStream
from bronet.layers.shape import unshuffle
from bronet.models import build_model
from bronet.ortho.products import float32_products
from bronet.ortho.real_dft import kernel_basis
from bronet.ortho.reflector import textbook_bro_convolution
from bronet.ortho.spd import eliminated, symmetric_inverse
from bronet.ortho.spectrum import spectrum_blocks, spectrum_gradient
from bronet.recipe import named_recipe, override
from bronet.training.statistics import Tally
from bronet.training.step import TrainStep

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.fixture(autouse=True)
def full_precision_products() -> None:
    torch.backends.cuda.matmul.allow_tf32 = False


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).cuda()


@pytest.mark.parametrize(
    ("c", "n", "k", "grid"), [(8, 3, 3, (6, 6)), (512, 128, 3, (18, 18)), (5, 2, 5, (7, 9)), (4, 1, 1, (3, 3))]
)
@pytest.mark.parametrize("dense", [True, False])
def test_spectrum_kernels_equal_their_twins(c: int, n: int, k: int, grid: tuple[int, int], dense: bool) -> None:
    V = draw(c, n, k, k)
    ours, twin = spectrum_blocks(V, grid, dense=dense), spectrum_blocks(V.double(), grid, dense=dense)
    assert_close(ours.double(), twin, atol=1e-4, rtol=1e-4)
    g = draw(*ours.shape, seed=1)
    ours = spectrum_gradient(g, (k, k), grid, dense=dense, dtype=torch.float32)
    twin = spectrum_gradient(g.double(), (k, k), grid, dense=dense, dtype=torch.float64)
    assert_close(ours.double(), twin, atol=1e-3, rtol=1e-4)
    assert kernel_basis(grid, (k, k), dense=dense, dtype=torch.float32, device=V.device).is_cuda


@pytest.mark.parametrize("n", [1, 7, 31, 32, 33, 63, 64])
def test_inverse_factor_kernel_equals_its_twin(n: int) -> None:
    from bronet.kernels.inverse import factor_tiles

    A = draw(9, n, n) / n**0.5
    S = A @ A.mT + 0.5 * torch.eye(n, device="cuda")
    M = torch.zeros_like(S)
    factor_tiles(S, M)
    assert_close(M.double(), eliminated(S.double()), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("n", [1, 7, 63, 64, 65, 128, 200, 256, 512])
def test_symmetric_inverse_inverts(n: int) -> None:
    A = draw(9, n, n) / n**0.5
    S = A @ A.mT + 0.5 * torch.eye(n, device="cuda")
    assert_close(symmetric_inverse(S).double(), torch.linalg.inv(S.double()), atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("tf32", [False, True])
def test_inverse_of_a_large_condition_leaves_reflectors_orthogonal(tf32: bool) -> None:
    """One direction of V grown to 30: norms of 10 and more from an inverse by Schur complements of inverses."""
    n = 256
    u, w = draw(3, 2 * n, 1), draw(3, n, 1, seed=1)
    V = torch.eye(2 * n, n, device="cuda") + 30 * (u @ w.mT) / (
        u.norm(dim=1, keepdim=True) * w.norm(dim=1, keepdim=True)
    )
    with float32_products(tf32=tf32):
        P = symmetric_inverse(V.mT @ V).double()
    V = V.double()
    assert torch.linalg.matrix_norm(V @ P @ V.mT, 2).amax() < (1.5 if tf32 else 1.01)


def test_fused_nadam_equals_torch() -> None:
    from bronet.training.optimizers import NAdam

    start = draw(33, 65)
    ours, theirs = (torch.nn.Parameter(start.clone()) for _ in range(2))
    fused = NAdam([ours], weight_decay=1e-2)
    reference = torch.optim.NAdam([theirs], lr=1e-2, weight_decay=1e-2)
    for step in range(12):
        ours.grad, theirs.grad = draw(33, 65, seed=step), draw(33, 65, seed=step)
        fused.prepare(1e-2)
        fused.step()
        reference.step()
    assert_close(ours, theirs, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize(("lookahead_steps", "teacher"), [(0, 0.0), (6, 0.0), (0, 0.5)])
def test_a_recorded_step_of_muon_equals_an_unrecorded_one(precision: str, lookahead_steps: int, teacher: float) -> None:
    """Rates differ from step to step: a recorded one would show, as would one that a replay leaves out."""
    values = [
        "optim.name=muon",
        f"optim.lookahead_steps={lookahead_steps}",
        f"train.precision={precision}",
        f"loss.teacher={teacher}",
    ]
    recipe = override(named_recipe("digits/quickstart"), [*values, "model.width=16", "model.depth=2"])
    spec = recipe.data.spec()
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(32, spec.channels, spec.height, spec.width, generator=generator).cuda()
    labels = torch.randint(spec.classes, (32,), generator=generator).cuda()
    start = [p.detach() for p in build_model(recipe.model, spec, device="cuda").parameters()]
    trained = []
    for recorded in (True, False):
        model = build_model(recipe.model, spec, device="cuda").train()
        tally = Tally(eps=0.1, device="cuda")
        step = TrainStep(recipe, model, tally)
        step.recordable = recorded
        for number in range(10):
            step(images, labels, number=number, learning_rate=0.02 / (1 + number), emma_eps=0.1)
        assert (step.graph is not None) == recorded
        assert tally.first_bad_step() is None
        trained.append([p.detach() for p in model.parameters()])
    for ours, theirs, before in zip(*trained, start, strict=True):
        moved = (theirs - before).norm()
        assert moved > 0
        assert (ours - theirs).norm() <= 0.05 * moved


def test_what_is_prepared_beside_the_forward_pass_changes_nothing() -> None:
    """Only a second forward pass finds inverses and weights prepared: logits and gradients stay those of the first."""
    values = ["model.width=64", "model.depth=5", "model.dense_width=256", "model.dense_depth=3"]
    recipe = override(named_recipe("cifar10/bronet-m"), values)
    model = build_model(recipe.model, recipe.data.spec(), device="cuda").train()
    images, target = draw(64, 3, 32, 32).sigmoid(), draw(64, 10, seed=1)
    taken: list[tuple[torch.Tensor, torch.Tensor]] = []
    for _ in range(4):
        logits = model(images)
        gradients = torch.autograd.grad((logits * target).sum(), list(model.parameters()))
        taken.append((logits.detach(), torch.cat([gradient.flatten() for gradient in gradients])))
        derived = [m for m in model.modules() if isinstance(m, (BROConv2d, BROLinear, CholeskyLinear))]
        assert all(layer.derivation is not None for layer in derived)
    for later in taken[1:]:
        for ours, first in zip(later, taken[0], strict=True):
            assert (ours - first).norm() <= 1e-2 * first.norm()


def test_memory_lent_by_other_work_is_not_given_away_while_it_is_read() -> None:
    """As happens where the stream of a layer's inverse is that of the next batch: such a user waits for nobody."""
    size, ones = 2**22, torch.ones(2**22, device="cuda")
    side = SideStream(ones.device)
    with side():
        stream, lent = torch.cuda.current_stream(), ones.clone()
    where = lent.data_ptr()
    side.keep_until_read([lent])
    torch.cuda._sleep(200_000_000)  # a tenth of a second: the reading is queued, and far from done
    total = lent.sum()
    del lent
    with torch.cuda.stream(stream):
        others = torch.full((size,), float("nan"), device="cuda")
        assert others.data_ptr() != where
    assert total.item() == size


@pytest.mark.parametrize("shift_class", [Centring, Bias])
@pytest.mark.parametrize("shape", [(6, 8, 5, 3), (256, 32, 4, 4), (33, 10)])
def test_fused_block_equals_its_parts(shift_class: type[Centring | Bias], shape: tuple[int, ...]) -> None:
    class Identity(MaxMin):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    block = Block(Identity(), shift_class(shape[1]), MaxMin()).cuda().train()
    torch.nn.init.normal_(block.shift.bias)
    x = draw(*shape).requires_grad_()
    g = draw(*shape, seed=1)
    fused = block(x)
    got = torch.autograd.grad((fused * g).sum(), (x, block.shift.bias))
    parts = MaxMin()(block.shift(x))
    expected = torch.autograd.grad((parts * g).sum(), (x, block.shift.bias))
    assert_close(fused, parts, atol=1e-5, rtol=1e-5)
    for a, b in zip(got, expected, strict=True):
        assert_close(a, b, atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize(
    ("c_in", "c_out", "rank", "size", "stride", "keep"),
    [(64, 64, 16, 16, 1, False), (64, 64, 16, 32, 1, False), (8, 24, 8, 8, 1, True), (16, 32, 32, 8, 2, False)],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fast_path_equals_the_float64_textbook_form(
    c_in: int, c_out: int, rank: int, size: int, stride: int, keep: bool, dtype: torch.dtype
) -> None:
    conv = BROConv2d(c_in, c_out, rank=rank, stride=stride, keep_padding=keep, ridge=1e-5).cuda()
    with torch.no_grad():
        conv.weight.add_(0.1 * draw(*conv.weight.shape))
    x = draw(16, c_in, size, size, seed=1).to(dtype).requires_grad_()
    y = conv(x)
    V = conv.weight.detach().double().requires_grad_()
    exact_x = x.detach().double().requires_grad_()
    expected = textbook_bro_convolution(unshuffle(exact_x, stride), V, c_out=c_out, keep_padding=keep, ridge=1e-5)
    # In float32 the inverse is that of S moved by a few ulps of its norm.
    tolerance = (40 if dtype == torch.bfloat16 else 400) * torch.finfo(dtype).eps
    assert (y.double() - expected).norm() <= tolerance * expected.norm()
    g = draw(*y.shape, seed=2).to(dtype)
    ours = torch.autograd.grad((y * g).sum(), (x, conv.weight))
    theirs = torch.autograd.grad((expected * g.double()).sum(), (exact_x, V))
    for a, b in zip(ours, theirs, strict=True):
        assert (a.double() - b).norm() <= tolerance * b.norm()

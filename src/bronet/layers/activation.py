"""Gradient-norm preserving activations: MaxMin and Householder folds of channel pairs (section 2.2, App. B.2).

Both pair channel i of the first half with channel i of the second half, and are exactly 1-Lipschitz in real arithmetic.
A `Block` joins an activation to the layers before it: on a GPU its shift and its MaxMin are one fused kernel.
"""

import math
from collections import OrderedDict
from collections.abc import Callable

import torch
from torch import Tensor, nn

from bronet.errors import BronetError
from bronet.layers.base import Device, LipschitzLayer, OneLipschitz, batch_first, batch_last, one_operation
from bronet.layers.shift import Bias, Centring
from bronet.ortho.products import is_followed_by_jit, is_traced
from bronet.proof.proved_map import ProvedMap, arithmetic, exact, gamma, up

_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


class _Sorted(torch.autograd.Function):
    """a, b -> (max(a, b), min(a, b)) side by side; torch's own gradient takes three times as long on a CPU.

    Kept is whether a pair was swapped, instead of its values. The gradient is permuted as the pair was: equal values
    count as not swapped, so its norm is preserved there, too.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(a: Tensor, b: Tensor, dim: int) -> Tensor:
        return torch.cat((torch.maximum(a, b), torch.minimum(a, b)), dim=dim)

    @staticmethod
    def setup_context(ctx, inputs: tuple[Tensor, Tensor, int], _output: Tensor) -> None:  # type: ignore[no-untyped-def, override]
        a, b, ctx.dim = inputs
        swapped = b > a
        ctx.save_for_backward(swapped)
        ctx.save_for_forward(swapped)

    @staticmethod
    def backward(ctx, *grads: Tensor) -> tuple[Tensor, Tensor, None]:  # type: ignore[no-untyped-def, override]
        (swapped,) = ctx.saved_tensors
        return *_exchanged(swapped, *grads[0].chunk(2, dim=ctx.dim)), None

    @staticmethod
    def jvp(ctx, *tangents: Tensor) -> Tensor:  # type: ignore[no-untyped-def, override]
        (swapped,), (a, b, _) = ctx.saved_tensors, tangents
        return torch.cat(_exchanged(swapped, a, b), dim=ctx.dim)


def _exchanged(where: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return a and b, with their entries exchanged at some places.

    `torch.where` branches at every entry, which takes a CPU four times as long as these operations on bits. They have
    no gradient, which a second derivative needs.
    """
    if a.device.type != "cpu" or torch.is_grad_enabled() or torch.compiler.is_compiling() or is_traced():
        return torch.where(where, b, a), torch.where(where, a, b)
    bits = _BITS[a.element_size()]
    difference = (a.view(bits) ^ b.view(bits)).bitwise_and_(where.to(bits).neg_())
    return (a.view(bits) ^ difference).view(a.dtype), (b.view(bits) ^ difference).view(b.dtype)


def max_min(x: Tensor) -> Tensor:
    """Return the larger numbers of all channel pairs, then the smaller ones; the memory order is (..., c, b)."""
    return batch_first(_sorted(*_halves(x), dim=-2))


def _sorted(a: Tensor, b: Tensor, *, dim: int) -> Tensor:
    followed = torch.compiler.is_compiling() or is_followed_by_jit()
    differentiated = a.requires_grad and torch.is_grad_enabled() and not followed
    return _Sorted.apply(a, b, dim) if differentiated else _Sorted.forward(a, b, dim)


class MaxMin(OneLipschitz):
    """(a, b) -> (max(a, b), min(a, b)); a permutation of each pair, so nothing is lost and nothing is rounded."""

    def forward(self, x: Tensor) -> Tensor:
        a, b = _halves(x)
        if x.device.type != "cpu" or batch_last(x).is_contiguous():
            return batch_first(_sorted(a, b, dim=-2))
        return _sorted(*x.chunk(2, dim=1), dim=1)  # in the memory order that x has

    def proved(self, shape: tuple[int, ...]) -> ProvedMap:
        return exact(max_min, shape)


class Householder(LipschitzLayer):
    """Fold each pair z onto one side of a learned line, `order` times: z -> z - 2 min(n.z, 0) n.

    With n = (sin(a/2), -cos(a/2)) the line has the angle a/2; a = pi/2 and order 1 is MaxMin. Order 2 folds a second
    time along its own line. The fold is continuous, so a rounded comparison cannot jump.
    """

    def __init__(
        self, channels: int, *, order: int = 1, device: Device = None, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__()
        if channels < 2 or channels % 2:
            raise BronetError(f"channels must be even and at least 2 (Householder pairs them), got {channels}")
        if order not in (1, 2):
            raise BronetError(f"order of a Householder activation must be 1 or 2, got {order}")
        self.input_channels = channels
        self.angles = nn.Parameter(torch.full((order, channels // 2), math.pi / 2, device=device, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        return _folded(x, *_normals(self.angles.to(x.dtype)))

    def proved(self, shape: tuple[int, ...]) -> ProvedMap:
        sin, cos = _normals(self.angles.detach().double())
        per_fold, folds = _norm_of_fold(sin, cos), self.angles.shape[0]
        # n.z errs by gamma_2 |n||z|, its product with n and the subtraction by gamma_3 of at most 3 |z|.
        gain = folds * gamma(16) * per_fold ** (folds + 1)
        # A fold loses what n.z, its double and its product with n lose; a second one can stretch that.
        offset = up(8 * folds * per_fold * arithmetic().underflow)
        return ProvedMap(lambda x: _folded(x, sin, cos), shape, up(per_fold**folds), up(gain), offset)


def _normals(angles: Tensor) -> tuple[Tensor, Tensor]:
    """Return sine and cosine of half of each angle, shaped for activations in the memory order (..., c, b)."""
    half = angles[..., None] / 2
    return half.sin(), half.cos()


def _folded(x: Tensor, sines: Tensor, cosines: Tensor) -> Tensor:
    a, b = _halves(x)
    for sin, cos in zip(sines, cosines, strict=True):
        t = 2 * torch.clamp_max(sin * a - cos * b, 0)
        a, b = a - t * sin, b + t * cos
    return batch_first(torch.cat((a, b), dim=-2))


def _norm_of_fold(sin: Tensor, cos: Tensor) -> float:
    """Return an upper bound on the Lipschitz constant of a fold along the stored normals n = (sin, -cos).

    I - 2 n n' has the eigenvalues 1 and 1 - 2 |n|^2, and the fold is continuous: max(1, 2 |n|^2 - 1).
    """
    length = float((sin.square() + cos.square()).max()) * (1 + gamma(3))
    return max(1.0, up(2 * length - 1))


def _halves(x: Tensor) -> tuple[Tensor, Tensor]:
    if x.shape[1] % 2:
        raise BronetError(f"channels must be even (the activation pairs them), got {x.shape[1]}")
    a, b = batch_last(x).chunk(2, dim=-2)
    return a, b


class _ShiftedMaxMin(torch.autograd.Function):
    """y, bias, mean -> MaxMin(y - mean + bias) for (pixel, channel, batch) activations.

    `over_all` is None where the mean is not y's own; else it turns this process's mean into that of all processes.
    """

    @staticmethod
    def forward(  # type: ignore[no-untyped-def, override]
        ctx, y: Tensor, bias: Tensor, mean: Tensor | None, over_all: Callable[[Tensor], Tensor] | None
    ) -> Tensor:
        from bronet.kernels.centred_maxmin import shifted_maxmin

        out, swapped = shifted_maxmin(y, bias if mean is None else bias - mean)
        ctx.save_for_backward(swapped)
        ctx.centre = over_all if mean is not None else None
        return out

    @staticmethod
    def backward(ctx, *grads: Tensor) -> tuple[Tensor, Tensor | None, None, None]:  # type: ignore[no-untyped-def, override]
        from bronet.kernels.centred_maxmin import maxmin_backward, shifted_maxmin_backward

        (swapped,) = ctx.saved_tensors
        g = grads[0].contiguous()
        if ctx.centre is None and not ctx.needs_input_grad[1]:  # only the pixels are asked for, as by an attack
            return maxmin_backward(g, swapped), None, None, None
        gy, gbias = shifted_maxmin_backward(g, swapped, centre=ctx.centre)
        return gy, gbias, None, None


class Block(nn.Sequential):
    """A linear layer, a shift and an activation, in this order, under the names `linear`, `shift`, `activation`.

    They stay layers of their own for bounds and proofs; fusing changes how the same function is computed. With
    `branch_only`, training centres what the layer adds to its input, not the input itself.
    """

    linear: LipschitzLayer
    shift: Centring | Bias
    activation: LipschitzLayer

    def __init__(
        self, linear: LipschitzLayer, shift: Centring | Bias, activation: LipschitzLayer, *, branch_only: bool = False
    ) -> None:
        super().__init__(OrderedDict(linear=linear, shift=shift, activation=activation))
        self.branch_only = branch_only

    @one_operation
    def forward(self, x: Tensor) -> Tensor:
        y, branch_only = self.linear(x), self.branch_only and self.training
        fuses = isinstance(self.activation, MaxMin) and y.is_cuda and y.dtype != torch.float64 and not branch_only
        if fuses and not is_traced():
            return self._fused(y)
        activated: Tensor = self.activation(x + self.shift(y - x) if branch_only else self.shift(y))
        return activated

    def _fused(self, y: Tensor) -> Tensor:
        shift, physical = self.shift, batch_last(y)
        flat = physical.contiguous().view(-1, y.shape[1], y.shape[0])
        over_all = shift.mean_over_all if self.training else None
        fused: Tensor = _ShiftedMaxMin.apply(flat, shift.bias.float(), shift.mean_of(flat.detach()), over_all)
        return batch_first(fused.view(physical.shape))

    @property
    def parameter_methods(self) -> tuple[str, ...]:
        """Methods besides the forward pass that read parameters of a part; see `LipschitzLayer`."""
        return tuple(dict.fromkeys(name for part in self._parts() for name in part.parameter_methods))

    def lipschitz_estimate(self) -> Tensor | float:
        """Return the product of the parts' constants as training sees them."""
        linear, shift, activation = (part.lipschitz_estimate() for part in self._parts())
        return linear * shift * activation

    def update_estimate(self, steps: int) -> None:
        """Improve what `lipschitz_estimate` returns."""
        for part in self._parts():
            part.update_estimate(steps)

    def _parts(self) -> tuple[LipschitzLayer, ...]:
        return self.linear, self.shift, self.activation

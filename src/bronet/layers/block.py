"""A layer, its shift and MaxMin as one block: on a GPU, the last two are one fused kernel.

The block's parts stay layers of their own for bounds and proofs; fusing changes how the same function is computed.
"""

from collections import OrderedDict
from collections.abc import Callable

import torch
from torch import Tensor, nn

from bronet.layers.activation import MaxMin
from bronet.layers.base import LipschitzLayer, batch_first, batch_last
from bronet.layers.shift import Bias, Centring


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
    """A linear layer, a shift and an activation, in this order, under the names `linear`, `shift`, `activation`."""

    def __init__(self, linear: LipschitzLayer, shift: Centring | Bias, activation: LipschitzLayer) -> None:
        super().__init__(OrderedDict(linear=linear, shift=shift, activation=activation))
        self.fuses = isinstance(activation, MaxMin)

    def forward(self, x: Tensor) -> Tensor:
        linear, shift, activation = self
        y: Tensor = linear(x)
        if not (self.fuses and y.is_cuda and y.dtype != torch.float64):
            return activation(shift(y))
        assert isinstance(shift, (Centring, Bias))
        physical = batch_last(y)
        flat = physical.contiguous().view(-1, y.shape[1], y.shape[0])
        over_all = shift.mean_over_all if self.training else None
        fused: Tensor = _ShiftedMaxMin.apply(flat, shift.bias.float(), shift.mean_of(flat.detach()), over_all)
        return batch_first(fused.view(physical.shape))

    @property
    def parameter_methods(self) -> tuple[str, ...]:
        """Methods besides the forward pass that read parameters of a part; see `LipschitzLayer`."""
        return tuple(dict.fromkeys(name for part in self.parts() for name in part.parameter_methods))

    def lipschitz_estimate(self) -> Tensor | float:
        """Return the product of the parts' constants as training sees them."""
        linear, shift, activation = (part.lipschitz_estimate() for part in self.parts())
        return linear * shift * activation

    def update_estimate(self, steps: int) -> None:
        """Improve what `lipschitz_estimate` returns."""
        for part in self.parts():
            part.update_estimate(steps)

    def parts(self) -> tuple[LipschitzLayer, LipschitzLayer, LipschitzLayer]:
        """Return the linear layer, the shift and the activation."""
        linear, shift, activation = self
        assert isinstance(linear, LipschitzLayer)
        assert isinstance(shift, LipschitzLayer)
        assert isinstance(activation, LipschitzLayer)
        return linear, shift, activation

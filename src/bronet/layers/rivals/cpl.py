"""CPL, the convex potential layer (Meunier et al. 2022): x - 2 / |W|^2 W' relu(W x + b).

Training divides by a power-iteration estimate of |W|, which can be too small; a proof divides by a proved norm where
that is larger, so the certified map is 1-Lipschitz. The two maps agree up to the estimate's error.
"""

from typing import ClassVar

import torch
from torch import Tensor, nn

from bronet.errors import BronetError
from bronet.layers.rivals.potential_conv import BoundedKernel, PotentialConv2d
from bronet.layers.rivals.spatial_conv import convolve_kept_size
from bronet.ortho.spd import unit_scaled
from bronet.proof.convolution import absolute_convolution_norm
from bronet.proof.rounding import gamma, up
from bronet.proof.spatial import kept_size_norm

_FIRST_STEPS = 50


class CPLConv2d(PotentialConv2d):
    """x - 2 U' relu(U x + b) with U = W / |W|; arguments as in PotentialConv2d.

    Args:
        input_size: image size for which training estimates the norm, after the stride; the forward takes any size.
    """

    forward_uses_estimate: ClassVar[bool] = True
    parameter_methods: ClassVar[tuple[str, ...]] = ("update_estimate",)
    power_vector: Tensor

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int = 3,
        *,
        hidden_channels: int | None = None,
        input_size: tuple[int, int] = (16, 16),
        stride: int = 1,
        circular: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            in_channels,
            out_channels,
            kernel_size,
            hidden_channels=hidden_channels,
            stride=stride,
            circular=circular,
            device=device,
            dtype=dtype,
        )
        if min(input_size) < 1:
            raise BronetError(f"input_size must be at least 1 x 1, got {input_size}")
        self.input_size = input_size
        # A circular convolution on this grid contains the zero-padded one: its norm is what proofs of large images use.
        margin = 0 if circular else kernel_size - 1
        grid = (input_size[0] + margin, input_size[1] + margin)
        self.register_buffer("power_vector", torch.empty(1, self.channels, *grid, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Start from normals that keep the variance, and an estimate of their norm."""
        nn.init.kaiming_normal_(self.weight)
        nn.init.zeros_(self.bias)
        nn.init.normal_(self.power_vector)
        if self.power_vector.device.type != "meta":
            self.update_estimate(_FIRST_STEPS)

    @torch.no_grad()
    def update_estimate(self, steps: int) -> None:
        """Take power-iteration steps on W'W, warm-started from the stored vector."""
        W = unit_scaled(self.weight.to(torch.promote_types(torch.float32, self.weight.dtype)))
        adjoint, v = W.transpose(0, 1).flip(-2, -1), self.power_vector.to(W.dtype)
        for _ in range(steps):
            moved = convolve_kept_size(convolve_kept_size(v, W, circular=True), adjoint, circular=True)
            size = moved.norm()
            v = torch.where(size > 0, moved / size, v)  # a zero kernel leaves the vector as it was
        self.power_vector.copy_(v)

    def derive(self, key: object) -> Tensor:
        assert isinstance(key, torch.dtype)
        W, v = unit_scaled(self.weight.to(key)), self.power_vector.to(key)
        estimate = convolve_kept_size(v, W, circular=True).norm() / v.norm()
        # Scaled to a largest entry of one, the norm is at least one: an estimate below is no estimate yet.
        return W / estimate.clamp_min(1.0)

    def bounded_kernel(self, size: tuple[int, int]) -> BoundedKernel:
        U = self.derive(torch.float64)
        norm = kept_size_norm(U, size, circular=self.circular)
        if norm <= 1:
            return BoundedKernel(U, norm)
        return BoundedKernel(U / norm, up(1 + gamma(2) * absolute_convolution_norm(U) / norm))

    def lipschitz_bound(self, input_size: tuple[int, int] | None = None) -> float:
        """Return the proved bound for this size (default: the size given at construction)."""
        stride = self.unshuffle.factor
        size = (self.input_size[0] * stride, self.input_size[1] * stride) if input_size is None else input_size
        return self.proved((self.image_channels, *size)).lipschitz

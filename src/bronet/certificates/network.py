"""The certificate of a network: a float64 forward pass with a running bound on its own rounding error.

The claim (docs/soundness.md): if an image has radius r, the float64 program computes the same class at every float64
point within l2 distance r. Two budgets make it hold for the program, not only for real arithmetic: one for the rounding
at the image, one for the rounding at a point of the ball, which grows with r. Both are linear in r, so the largest r is
found by a division. A radius also ends where a number could overflow. No estimate enters, and TF32 plays no part.
"""

import warnings
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from bronet.errors import BronetError
from bronet.layers.base import IMAGE_AXES, checked_shape
from bronet.layers.head import ProvedHead
from bronet.layers.proving import proved_chain
from bronet.models import CertifiableModel
from bronet.proof.proved_map import ProvedMap
from bronet.proof.rounding import NORM_UNDERFLOW, UNDERFLOW, UNIT_ROUNDOFF, gamma, up
from bronet.radius import targeted_radii

# Per-image scalars are products and sums of a few positive numbers for each layer; this outweighs their rounding.
_TENSOR_SLACK = 1 + 2.0**-44

# Norms, constants and 2^53 rounding gains (which bound the absolute sums inside a layer) must stay below this, so that
# no product, sum or square in a layer can overflow at a point of the ball.
_LARGEST = 2.0**400


@dataclass(frozen=True)
class Certificate:
    """What is proved of a batch: `targeted[i, j]` is the distance that image i provably keeps from class j."""

    prediction: Int[Tensor, " b"]
    margin: Float[Tensor, " b"]
    radius: Float[Tensor, " b"]
    targeted: Float[Tensor, "b k"]
    rounding: Float[Tensor, " b"]


@dataclass(frozen=True)
class _Budget:
    """Running bounds: |error| <= at_image at the image, <= at_ball + ball_slope r at points within r of it.

    `lipschitz` bounds the constant of the layers so far. Up to the distance `reach` nothing overflows.
    """

    lipschitz: float
    at_image: Float[Tensor, " b"]
    at_ball: Float[Tensor, " b"]
    ball_slope: Float[Tensor, " b"]
    reach: Float[Tensor, " b"]

    def after(self, layer: ProvedMap, size: Float[Tensor, " b"]) -> "_Budget":
        """Return the budget behind a layer whose computed input at the image has norm at most `size`."""
        L, gain, offset = layer.lipschitz, layer.gain, layer.offset
        # At x' the computed input is at most the exact one at x, plus its movement, plus its own error.
        elsewhere = size + self.at_image + self.at_ball
        growth = self.lipschitz + self.ball_slope
        return _Budget(
            lipschitz=up(self.lipschitz * L),
            at_image=(L * self.at_image + gain * size + offset) * _TENSOR_SLACK,
            at_ball=(L * self.at_ball + gain * elsewhere + offset) * _TENSOR_SLACK,
            ball_slope=(L * self.ball_slope + gain * growth) * _TENSOR_SLACK + UNDERFLOW,
            reach=self._reach(layer, elsewhere, growth),
        )

    def _reach(self, layer: ProvedMap, elsewhere: Tensor, growth: Tensor) -> Float[Tensor, " b"]:
        """Return a distance from the image within which nothing in this layer or an earlier one can overflow."""
        sums = max(layer.lipschitz, max(layer.gain, layer.offset) / UNIT_ROUNDOFF)
        free = (_LARGEST - elsewhere) / growth / _TENSOR_SLACK
        reach = torch.minimum(self.reach, free if sums < _LARGEST else torch.zeros_like(free))
        return reach.clamp_min(0).nan_to_num(0.0)  # a norm that is not finite has no reach


@dataclass(frozen=True)
class ProvedNetwork:
    """A network's layers as proved float64 maps. Its weights are its own: changes to the model do not reach it."""

    layers: tuple[tuple[str, ProvedMap], ...]
    head: ProvedHead
    image_shape: tuple[int, ...]

    @property
    def lipschitz(self) -> float:
        """An upper bound on the Lipschitz constant of everything before the head."""
        total = 1.0
        for _, layer in self.layers:
            total = up(total * layer.lipschitz)
        return total

    @property
    def gap_lipschitz(self) -> Float[Tensor, "k k"]:
        """Upper bounds on the Lipschitz constants of f_t - f_j from pixels; zero on the diagonal."""
        return self.head.gaps * up(self.lipschitz) * _TENSOR_SLACK

    def logits(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b k"]:
        """Return the float64 logits: the program that the certificate speaks of."""
        x = self._checked(images)
        for _, layer in self.layers:
            x = layer.apply(x)
        return self.head.logits.apply(x)

    @torch.no_grad()
    def certify(self, images: Shaped[Tensor, "b c h w"]) -> Certificate:
        """Return prediction and proved radius of every image."""
        x = self._checked(images)
        zero = x.new_zeros(x.shape[0])
        budget = _Budget(1.0, zero, zero, zero, torch.full_like(zero, _LARGEST))
        for _, layer in self.layers:
            budget = budget.after(layer, _norm_rounded_up(x))
            x = layer.apply(x)
        return self._conclude(x, budget)

    def _conclude(self, x: Tensor, budget: _Budget) -> Certificate:
        """Turn the budgets before the head into a slack for each margin and a slope for each gap."""
        head, size = self.head.logits, _norm_rounded_up(x)
        logits = head.apply(x)
        prediction = logits.argmax(dim=1)
        gaps = self.head.gaps[prediction]
        # Each logit rounds by gain |h| + offset, at the image and at the point of the ball; two logits make a margin.
        own = head.gain * size + head.offset
        elsewhere = head.gain * (size + budget.at_image + budget.at_ball) + head.offset
        propagated = gaps * (budget.at_image + budget.at_ball)[:, None]
        slack = (propagated + 2 * (own + elsewhere)[:, None]) * _TENSOR_SLACK
        growth = head.gain * (budget.lipschitz + budget.ball_slope)
        slope = (gaps * budget.ball_slope[:, None] + 2 * growth[:, None]) * _TENSOR_SLACK
        reach = budget.after(head, size).reach
        targeted = targeted_radii(logits, self.gap_lipschitz, slack=slack, slope=slope)
        targeted = torch.minimum(targeted, reach[:, None])
        targeted = targeted.scatter(1, prediction[:, None], torch.inf)
        runner_up = logits.scatter(1, prediction[:, None], -torch.inf).amax(dim=1)
        margin = logits.gather(1, prediction[:, None])[:, 0] - runner_up
        return Certificate(prediction, margin, targeted.amin(dim=1), targeted, slack.amax(dim=1))

    def _checked(self, images: Tensor) -> Tensor:
        if images.ndim != len(self.image_shape) + 1 or tuple(images.shape[1:]) != self.image_shape:
            raise BronetError(f"images must have shape (batch, {self.image_shape}), got {tuple(images.shape)}")
        if not images.is_floating_point():
            raise BronetError(f"images must be floating point in [0, 1], got {images.dtype}; divide uint8 by 255")
        if not bool(torch.isfinite(images).all()):
            raise BronetError("images must be finite, got NaN or infinity; such an image has no certificate")
        return images.double()


@torch.no_grad()
def prove(model: CertifiableModel, image_shape: tuple[int, ...] | None = None) -> ProvedNetwork:
    """Return the proved float64 network of a model for images of this shape (default: the model's own).

    Weights and settings are read once, here. Running means are used as in evaluation, whatever mode the model is in.
    """
    model = getattr(model, "_orig_mod", model)  # what torch.compile wraps
    if not isinstance(model, CertifiableModel):
        kind = type(model).__name__
        advice = "bronet.Chain makes one of bronet's layers, bronet.convert one of torch's"
        raise BronetError(f"model must be a CertifiableModel, got {kind}; {advice}")
    model.require_faithful()
    shape = model.image_shape if image_shape is None else checked_shape(image_shape, "image_shape")
    if (len(shape), shape[0]) != (IMAGE_AXES, model.image_shape[0]):
        raise BronetError(f"images must have {model.image_shape[0]} channels and two sides, got shape {shape}")
    layers, head = proved_chain(model.chain(), model.head, shape)
    return ProvedNetwork(layers, head, shape)


def certified_radius(
    model: CertifiableModel, images: Float[Tensor, "b c h w"], *, batch_size: int | None = None
) -> Float[Tensor, " b"]:
    """Return the certified l2 radius of the predicted class of every image, in pixel space [0, 1]: a proof.

    Guaranteed: the float64 network (`prove(model).logits`) predicts the same class at every point closer than the
    radius. Ties get 0. For many calls, keep `prove(model)` and use its `certify`. `batch_size` images are computed at
    once, by default as many as suit the device.
    """
    if not isinstance(images, Tensor) or images.ndim != 1 + IMAGE_AXES:
        got = f"shape {tuple(images.shape)}" if isinstance(images, Tensor) else type(images).__name__
        raise BronetError(f"images must be a tensor of shape (batch, channel, height, width), got {got}")
    at_once = images_at_once(images.device, batch_size)
    network = prove(model, tuple(images.shape[1:]))
    if not len(images):
        return images.new_zeros(0, dtype=torch.float64)
    if float(images.amin()) < 0 or float(images.amax()) > 1:
        warnings.warn("images lie outside [0, 1], where radii mean nothing; divide bytes by 255", stacklevel=2)
    return torch.cat([network.certify(batch).radius for batch in images.split(at_once)])


def images_at_once(device: torch.device, wanted: int | None = None) -> int:
    """Return how many images to certify at once, as wanted or else: many keep a GPU busy, few stay in a CPU's cache."""
    if wanted is None:
        return 50 if device.type == "cpu" else 250
    if wanted < 1:
        raise BronetError(f"batch_size must be at least 1, got {wanted}")
    return wanted


def _norm_rounded_up(x: Tensor) -> Float[Tensor, " b"]:
    """Return an upper bound on the norm of every image's activations."""
    norm = torch.linalg.vector_norm(x, dim=tuple(range(1, x.ndim)))  # in the order of its memory: flattening would copy
    return norm * (1 + gamma(x.shape[1:].numel() + 2)) + NORM_UNDERFLOW

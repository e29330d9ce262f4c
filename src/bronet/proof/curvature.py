"""Differences of logits that bend: a linear map, a smooth activation, a linear map; radii from gradient and curvature.

f(z) = V a(W z + b) + c with a(x) = (x + sqrt(x^2 + 4)) / 2 - 1: its operations round correctly, unlike softplus, whose
largest curvature it has. a' lies in (0, 1), and a'' = 2 / (x^2 + 4)^(3/2) in (0, 1/4]. With u = V_t - V_j the second
derivative of m = f_t - f_j along d is the sum of u_i a''_i (w_i d)^2. As a'' is positive, only the negative u_i make it
negative:

    m(z + d) >= m(z) - |grad m(z)| |d| - K |d|^2 / 2,      K = lambda_max(W' diag(max(-u, 0)) W) / 4,

the curvature certificate of Singla and Feizi (ICML 2020, NeurIPS 2022). So m stays positive for |d| < m / s with the
secant s = (g + sqrt(g^2 + 2 K m)) / 2, which is (sqrt(g^2 + 2 K m) - g) / K without its cancellation.
"""

import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from bronet.proof.budget import TENSOR_SLACK, Budget
from bronet.proof.proved_map import (
    FLOAT64,
    NORM_UNDERFLOW,
    ProvedMap,
    arithmetic,
    gamma,
    gamma_of_proof,
    linear_map,
    norm_of_constant,
    rounding_of_products,
    shifted,
    up,
)
from bronet.proof.spectral import largest_singular_value, product_with

LARGEST_CURVATURE = 1 / 4
# A bound of its own is proved for so many pairs of classes, as each takes a factorisation; beyond, max(-u) |W|^2 is.
_PAIRS = 100


def bent(x: Tensor) -> Tensor:
    """Return (x + sqrt(x^2 + 4)) / 2 - 1: smooth, increasing, convex, zero at zero, and no larger than |x|."""
    return (x + (x * x + 4).sqrt()) / 2 - 1


def slope(x: Tensor) -> Tensor:
    """Return the derivative of `bent`."""
    return (1 + x / (x * x + 4).sqrt()) / 2


@dataclass(frozen=True, kw_only=True)
class BentMap(ProvedMap):
    """Logits f(z) = V a(W z + b) + c, with what is proved of their differences besides Lipschitz constants.

    `curvature[t, j]` is K of f_t - f_j. `row_gaps`, `norm` and `absolute` bound |V_t - V_j|, |W| and the norm of |W|.
    """

    W: Float[Tensor, "h d"]
    b: Float[Tensor, " h"]
    V: Float[Tensor, "k h"]
    norm: float
    absolute: float
    row_gaps: Float[Tensor, "k k"]
    curvature: Float[Tensor, "k k"]

    def gradients(self, z: Float[Tensor, "b d"], prediction: Int[Tensor, " b"]) -> Float[Tensor, "b k"]:
        """Return upper bounds on the norm of the gradient of f_t - f_j at z, for the predicted class t and every j.

        Exact is W'(a'(W z + b) * u). What a' is taken at errs by `moved`, a' itself by at most 6 u and by a quarter of
        that; both are multiplied by u and W. Two products by differences and slopes, one with W, and a norm round.
        """
        d, h = self.W.shape[1], self.W.shape[0]
        slopes = slope(z @ self.W.mT + self.b)
        differences = self.V[prediction][:, None] - self.V
        computed = torch.linalg.vector_norm((slopes[:, None] * differences) @ self.W, dim=-1)
        size = torch.linalg.vector_norm(z, dim=1) * (1 + gamma_of_proof(d + 2)) + NORM_UNDERFLOW
        moved = gamma_of_proof(d + 2) * (self.absolute * size + norm_of_constant(self.b))
        relative = self.norm * (LARGEST_CURVATURE * moved + gamma_of_proof(8)) + gamma_of_proof(h + 8) * self.absolute
        errors = relative[:, None] * self.row_gaps[prediction]
        return (computed * (1 + gamma_of_proof(d + 2)) + errors) * TENSOR_SLACK + NORM_UNDERFLOW

    def losses(
        self, z: Float[Tensor, "b d"], logits: Float[Tensor, "b k"], budget: Budget, lipschitz: float
    ) -> tuple[Float[Tensor, "b k"], Float[Tensor, "b k"]]:
        """Return what the margin of the predicted class over every other loses at once, and per unit of distance.

        z is what the map takes at an image, with its budget and its constant from there. The second bound holds as far
        as the margin of these logits lasts.

        At a distance r the map takes what lies within A + B r of z, for A = moved and B = speed, and rounding grows by
        `growth` r. So g (A + B r) + K (A + B r)^2 / 2 is lost, whose part without r is lost at once. Of the rest,
        (g + K A) B r + K B^2 r^2 / 2, the secant up to where the margin ends is the loss per distance. Its root is of K
        and of the margin, not of K B^2, which may underflow where W is large and B is small.
        """
        moved = (budget.at_image + budget.at_ball)[:, None] * TENSOR_SLACK
        speed = (up(lipschitz) + budget.ball_slope)[:, None] * TENSOR_SLACK
        growth = 2 * (self.gain * budget.growth)[:, None]
        prediction = logits.argmax(dim=1)
        g, K = self.gradients(z, prediction), self.curvature[prediction]
        at_once = (g * moved + K * moved.square()) * TENSOR_SLACK
        tangent = ((g + K * moved) * speed + growth) * TENSOR_SLACK
        # At least the margin that is left: a larger one has a larger secant, hence a smaller radius.
        margin = (logits.gather(1, prediction[:, None]) - logits).clamp_min(0) * TENSOR_SLACK
        bending = math.sqrt(2) * K.sqrt() * margin.sqrt() * speed * TENSOR_SLACK
        secant = (tangent + (tangent.square() + bending.square()).sqrt()) / 2
        return at_once, torch.maximum(tangent, secant * TENSOR_SLACK) + NORM_UNDERFLOW

    def reach(self, budget: Budget) -> Float[Tensor, " b"]:
        """Return up to which distance nothing inside the map overflows.

        What is squared, W z + b, must stay below the largest norm, like all that goes from one map to the next.
        """
        largest = arithmetic().largest
        free = (largest - (self.absolute * budget.elsewhere + norm_of_constant(self.b)) * TENSOR_SLACK) / TENSOR_SLACK
        return (free / (self.absolute * budget.growth)).clamp_min(0).nan_to_num(0.0)


def proved_bend(
    W: Float[Tensor, "h d"], b: Float[Tensor, " h"], V: Float[Tensor, "k h"], c: Float[Tensor, " k"], gaps: Tensor
) -> BentMap:
    """Return the proof of V a(W z + b) + c for float64 numbers of its own; `gaps` bounds |V_t - V_j|."""
    hidden, classes = W.shape[0], V.shape[0]
    into, out = product_with(W), product_with(V)
    norm, outer = into.norm, out.norm
    first = shifted(linear_map(lambda z: z @ W.mT, (hidden,), [into]), b)
    shift, root = norm_of_constant(b), up(math.sqrt(hidden))
    # |a(x)| <= |x|; a square, three sums, a root: no error is larger than gamma_8 (|x| + 1).
    gain = first.gain + gamma(8) * (norm + first.gain)
    offset = first.offset + gamma(8) * (shift + first.offset + root) + 4 * arithmetic().underflow
    back, lost = rounding_of_products([out])
    plain = ProvedMap(
        lambda z: bent(z @ W.mT + b) @ V.mT,
        (classes,),
        up(norm * outer),
        gain=up(outer * gain + back * (norm + gain)),
        offset=up(outer * offset + back * (shift + offset) + lost),
    )
    whole, curvature = replace(shifted(plain, c), gaps=gaps * up(norm)), _curvatures(W, V, norm)
    absolute = into.absolute_norm
    return BentMap(**vars(whole), W=W, b=b, V=V, norm=norm, absolute=absolute, row_gaps=gaps, curvature=curvature)


def _curvatures(W: Float[Tensor, "h d"], V: Float[Tensor, "k h"], norm: float) -> Float[Tensor, "k k"]:
    """Return K of every difference f_t - f_j, zero on the diagonal."""
    classes = V.shape[0]
    negative = (V[None] - V[:, None]).clamp_min(0)  # max(-u, 0) for u = V_t - V_j
    bounds = negative.amax(dim=-1) * up(LARGEST_CURVATURE * norm * norm) * (1 + gamma_of_proof(4))
    if classes * (classes - 1) > _PAIRS:
        return bounds
    for t in range(classes):
        for j in range(classes):
            if 0 < bounds[t, j] < FLOAT64.largest:
                counted = negative[t, j] > 0
                B = negative[t, j][counted].sqrt()[:, None] * W[counted]
                # Its entries were rounded three times, with the difference and its root.
                error = gamma_of_proof(4) * norm_of_constant(B)
                bound = up(LARGEST_CURVATURE * up(largest_singular_value(B) + error) ** 2)
                bounds[t, j] = min(float(bounds[t, j]), bound)
    return bounds

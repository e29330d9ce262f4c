"""A second verifier of certificates, which trusts nothing of bronet: NumPy, the standard library, and this page.

    python verifier/verifier.py WEIGHTS RECIPE CERTIFICATE.csv --images images.npz

WEIGHTS is a safetensors file, RECIPE a recipe.yaml or a config.json. images.npz holds `images` (n, c, h, w) as bytes,
`labels`, and, if they are not rows 0, 1, ... of the certificate, `index`: the row of each image.

What is confirmed. Weights and recipe define a network N in real arithmetic: its numbers are the stored ones, and its
reflectors, Cholesky maps, square roots and Fourier transforms are the exact ones, ridges included. A row "class t,
radius r" is confirmed if it is proved here that N gives class t, and no other, at every real point x' with
|x' - x|_2 <= r, where x is byte / scale, exactly or rounded to float64. The proof encloses the logits of N at x, bounds
the Lipschitz constant of every difference of two logits, and counts its own rounding.

What is not. N is not a program. The float64 program of bronet, which its certificate is about, computes N with rounding
errors; that they stay within the budget subtracted from each radius is proved in docs/soundness.md, not here. The least
spare margin is printed: a program whose logits stay within half of it of those of N in all the balls keeps all classes.

What is assumed. (1) In float64, + - * / and square roots are correctly rounded. (2) Entries of a matrix product AB, and
sums, err by at most gamma_n |A||B|, n the length of the sums, gamma_n = nu / (1 - nu), u = 2^-53: true of sums in any
order, with or without fused multiply-add. (3) Python's integers are exact, and their quotients correctly rounded.
Nothing is assumed of factorisations, inverses, eigenvalues, sines or cosines: these are checked or done in integers.
"""

import argparse
import json
import math
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Settings = dict[str, Any]
Kernel = tuple[Array, Array]  # stored numbers V, (m, n) or (m, n, k, k), and R: entries of V err by gamma_5 of R's
Head = tuple[Array, Array, Array]  # logits without bias, bounds on their own errors, and on |w_t - w_j| for their rows
U, TINY = 2.0**-53, 2.0**-400  # TINY is more than underflow can take from a norm or a product
BITS = 200  # of cosines in integers
RIDGE, SEMI_ORTHOGONAL_RIDGE, CHOLESKY_RIDGE, COMMON_STD = 1e-7, 1e-5, 1e-3, 0.2507


def require(holds: Any, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)


# 1. Arithmetic. Activations are (channel, row, column, image) or (channel, image). Images come last, so the columns of
# the matrices below belong to images 0, 1, ..., b - 1, 0, 1, ... in turn; errors are bounded for each image.
def up(value: Any) -> Any:
    """Return no less than the exact value of a positive expression of fewer than 2^12 roundings."""
    return value * (1 + 2.0**-40) + TINY


def gamma(n: int) -> float:
    return up(n * U / (1 - n * U))


def sizes(x: Array, images: int) -> Array:
    """Return upper bounds on the norm of each image's numbers: a sum of k squares errs by gamma_{k + 1} of itself."""
    flat = x.reshape(-1, images)
    return up(np.sqrt((flat * flat).sum(axis=0)) * (1 + gamma(len(flat) + 2)))


def frobenius(A: Array) -> float:
    """Return an upper bound on Frobenius' norm, which bounds the spectral norm."""
    return float(sizes(A, 1)[0])


def product(A: Array, B: Array, images: int) -> tuple[Array, Array]:
    """Return C close to AB, and for each image a bound on the norm of its columns of C - AB.

    Cut A = H + T and B = K + S, exactly, with so few digits in H and K that H K is computed exactly: its terms and all
    partial sums are multiples of a power of two, g, and at most 2^53 g: float64 numbers. Only H S and T B, about 2^-20
    times as large, err by gamma_n times the product of Frobenius' norms; two additions then round once each. So C errs
    by little more than one rounding of its own size, however long its sums are and however much cancels in them.
    """
    n = A.shape[1]
    bits = (53 - math.ceil(math.log2(n))) // 2
    steps = (math.ldexp(1.0, math.frexp(float(np.abs(X).max()))[1] - bits) for X in (A, B))  # |X| is below 2^bits steps
    H, K = (np.rint(X / step) * step for X, step in zip((A, B), steps, strict=True))
    T, S = A - H, B - K
    rest = H @ S + T @ B
    C = H @ K + rest
    error = gamma(n + 1) * (frobenius(H) * sizes(S, images) + frobenius(T) * sizes(B, images))
    return C, up(error + U * (sizes(rest, images) + sizes(C, images)))


def largest_eigenvalue(M: Array, error: float) -> float:
    """Return an upper bound on the largest eigenvalue of a symmetric matrix that M differs from by `error` in norm.

    If E = t I - M - L L', then lambda_max(M) <= t + |E|, as L L' is positive semidefinite. t is guessed, L is what a
    Cholesky routine returns, and neither is believed: E is computed. L L' errs by gamma_n |L||L|', whose norm is at
    most the largest row sum times the largest column sum of |L|.
    """
    n = len(M)
    t = float(np.linalg.eigvalsh(M)[-1]) * (1 + 32 * n * U)
    shifted = t * np.eye(n) - M
    L = np.linalg.cholesky(shifted)
    sums = float(np.abs(L).sum(0).max() * np.abs(L).sum(1).max()) * (1 + gamma(2 * n))
    rounding = gamma(n + 1) * sums + U * (t + float(np.abs(M).max()))
    return up(t + frobenius(shifted - L @ L.T) + rounding + error)


# 2. Layers act on an enclosure of all images and are exact maps f with |f(x) - f(y)| <= L |x - y|.
@dataclass
class Enclosure:
    """Computed activations x: within `error` of those of N, which in a ball of radius r move by `lipschitz` r."""

    x: Array
    error: Array
    lipschitz: float

    def become(self, y: Array, own: Array, lipschitz: float = 1.0) -> None:
        """Go through a layer, y being f(x) up to `own`: |f(h) - y| <= |f(h) - f(x)| + |f(x) - y|."""
        self.x, self.error = y, up(lipschitz * self.error + own)
        self.lipschitz = self.lipschitz if lipschitz == 1 else up(self.lipschitz * lipschitz)


def ridge_of(V: Array, eta: float, share: float) -> tuple[float, float]:
    """Return e = share tr(V'V) and a bound on its error, where V errs by `eta`."""
    e = share * float((V * V).sum(axis=0).sum())
    return e, up(share * (2 * eta * frobenius(V) + eta**2) + gamma(sum(V.shape) + 8) * e)


def affine(h: Enclosure, shift: Array, std: float = 1.0) -> None:
    """(x + shift) / std for each channel: two roundings of the result's size."""
    y = (h.x + shift.reshape(-1, *(1 for _ in h.x.shape[1:]))) / std
    h.become(y, 2.5 * U * sizes(y, y.shape[-1]), 1.0 if std == 1 else up(1 / std))


def activated(h: Enclosure, shift: Array) -> None:
    """Shift, then sort channels i and i + c/2: the larger numbers, then the smaller ones. Sorting is 1-Lipschitz."""
    affine(h, shift)
    a, b = np.split(h.x, 2)
    h.x = np.concatenate((np.maximum(a, b), np.minimum(a, b)))


def unshuffle(h: Enclosure, f: int) -> None:
    """Turn f x f patches into channels, ordered (channel, row, column). Numbers only move."""
    c, y, x, b = h.x.shape
    h.x = h.x.reshape(c, y // f, f, x // f, f, b).transpose(0, 2, 4, 1, 3, 5).reshape(c * f * f, y // f, x // f, b)


def strided_convolution(h: Enclosure, kernel: Array, stride: int, padding: int) -> None:
    """The zero-padded convolution of BRONet's stem, as one product of the kernel with all patches.

    Its norm is the root of lambda_max(J'J), J the Jacobian. J'J is a sum over the output pixels: the kernel's Gram
    matrix K'K, placed at the pixel's patch, and cut to the pixels inside the image. An entry is a sum over the outputs
    and at most o = ceil(k / stride)^2 patches, so it errs by gamma of their number times the same sum for |K|, whose
    largest row sum, a bound on its norm, is at most o times that of |K|'|K|.
    """
    (c_out, c, k, _), (_, side, _, b), K = kernel.shape, h.x.shape, kernel.reshape(len(kernel), -1)
    require(c * side * side <= 4096, f"a stem on {c} x {side} x {side} numbers is too large: at most 4096")
    wide, inside, overlaps = side + 2 * padding, slice(padding, padding + side), math.ceil(k / stride) ** 2
    out = (wide - k) // stride + 1
    JJ = np.zeros((c, wide, wide, c, wide, wide))
    for i, j in np.ndindex(out, out):
        down, across = slice(i * stride, i * stride + k), slice(j * stride, j * stride + k)
        JJ[:, down, across, :, down, across] += (K.T @ K).reshape(c, k, k, c, k, k)
    M = JJ[:, inside, inside, :, inside, inside].reshape(c * side * side, -1)
    row_sum = float((np.abs(K).T @ np.abs(K)).sum(axis=1).max()) * (1 + gamma(c_out + k * k * c))
    square = largest_eigenvalue(M, up(gamma(c_out + overlaps) * overlaps * row_sum))
    padded = np.pad(h.x, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (k, k), (1, 2))[:, ::stride, ::stride]
    y, own = product(K, windows.transpose(0, 4, 5, 1, 2, 3).reshape(c * k * k, -1), b)
    h.become(y.reshape(c_out, out, out, b), own, up(math.sqrt(square)))


# 3. The reflector W = I - 2 V S^-1 V', S = V'V + e I, e = ridge tr(V'V) / n. Its norm needs no computation: where V has
# the singular value s, W has the eigenvalue 1 - 2 s^2 / (s^2 + e), elsewhere 1, all in (-1, 1]. Zero channels appended
# before it and channels dropped behind it do not increase norms. What has to be enclosed is W u.
def reflected(V: Array, eta: float, ridge: float, u: Array, images: int) -> tuple[Array, Array]:
    """Return W u, zeros appended to u, and its error, for the exact V, which is within eta of V in Frobenius' norm.

    Let R be invertible, G = R'S R and |G - I| <= d < 1. (R comes from a Cholesky routine; d is computed from it, with
    the rounding of all products.) Take any p, and its residual r = V'(u - V p) - e p. Then V S^-1 V'u differs from V p
    by V S^-1 r = (V R) G^-1 (R'r). As (V R)'(V R) <= G, the norm of V R G^-1/2 is at most 1, and that of the difference
    at most |R'r| / sqrt(1 - d). So p may come from anywhere: z = u - V p and r are computed by `product`, and W u is
    2 z - u up to twice that bound and what z errs by. In R'r that counts |R'V'| <= sqrt(1 + d) times, all else |R|.
    """
    m, n = V.shape
    e, e_error = ridge_of(V, eta, ridge / n)
    S = V.T @ V + e * np.eye(n)
    S_error = gamma(m + 1) * (frobenius(V) ** 2 + e) + 2 * eta * frobenius(V) + eta**2 + e_error
    R = np.linalg.inv(np.linalg.cholesky(S)).T
    R_size = frobenius(R)
    d = up(frobenius(R.T @ (S @ R) - np.eye(n)) + R_size**2 * (S_error + 3 * gamma(n) * frobenius(S)))
    require(d <= 0.5, f"a reflector is too ill-conditioned to be enclosed: |G - I| <= {d:.1e}, must be at most 1/2")
    u = np.pad(u, ((0, m - len(u)), (0, 0)))
    p = R @ (R.T @ (V.T @ u))
    Vp, Vp_error = product(V, p, images)
    z = u - Vp
    Vz, Vz_error = product(V.T, z, images)
    r = Vz - e * p
    z_size, p_size, r_size = (sizes(x, images) for x in (z, p, r))
    z_error = Vp_error + U * z_size + eta * p_size
    r_error = Vz_error + 2 * U * (r_size + sizes(Vz, images)) + eta * z_size + e_error * p_size
    Rr = sizes(R.T @ r, images) + gamma(n) * R_size * r_size + R_size * r_error
    distance = up((Rr + math.sqrt(1 + d) * z_error) / math.sqrt(1 - d) + z_error)
    w = 2 * z - u
    return w, up(2 * distance + U * sizes(w, images))


# 4. The BRO convolution. On a circle of N x N pixels, in whose corner the s x s image lies, the reflector of V_f acts
# at each frequency f. Where on the circle the image lies (padding on both sides) does not matter, nor where the
# kernel's first tap lies: a phase of V_f cancels in W_f. A complex V_f is the real matrix [[Re, -Im], [Im, Re]].
def circle(N: int) -> list[tuple[int, int]]:
    """Return (cos, sin) of 2 pi j / N times 2^BITS, right to 2^-150: Machin's formula and Taylor's series."""
    one, points = 1 << BITS, []
    turn = sum((32 * one // 5**i - 8 * one // 239**i) // i * (2 - i % 4) for i in range(1, BITS, 2))
    for j in range(N):
        angle, sums, term = turn * (j if 2 * j <= N else j - N) // N, [0, 0, 0, 0], one
        for i in range(BITS):
            sums[i % 4] += term
            term = term * angle // (one * (i + 1))
        points.append((sums[0] - sums[2], sums[1] - sums[3]))
    return points


def bases(N: int, s: int) -> tuple[Array, Array]:
    """Return the Fourier transforms of s pixels on a circle of N, each entry rounded once.

    Across: rows (frequency k <= N/2, re/im), scaled by sqrt(2/N), or sqrt(1/N) where k and -k are the same. Down: the
    unitary transform of pairs, rows (frequency, re/im), columns (pixel, re/im). One after the other they take a real
    image to half of its spectrum, the other half being the conjugate, and preserve norms and inner products.
    """
    points = circle(N)
    scales = [math.isqrt((weight << 2 * BITS) // N) for weight in (1, 2)]
    across, down = np.empty((N // 2 + 1, 2, s)), np.empty((N, 2, s, 2))
    for k, j in np.ndindex(N, s):
        re, im = ((value * scales[0] >> BITS) / (1 << BITS) for value in points[-j * k % N])
        down[k, :, j] = (re, -im), (im, re)
        if 2 * k <= N:
            across[k, :, j] = [(x * scales[2 * k % N > 0] >> BITS) / (1 << BITS) for x in points[-j * k % N]]
    return across.reshape(-1, s), down.reshape(-1, 2 * s)


def spectrum(V: Array, rounded: Array, N: int) -> Iterator[tuple[Array, float]]:
    """Yield V_f = sum over the taps t of V_t exp(-2 pi i f.t / N) for f = (k down, k <= N/2 across).

    Besides the errors of V_t and of the product, the rounding of cosines costs u times the sum of |V_t|. Real and
    imaginary part both have them, and both occur twice in the real form of V_f: sqrt(2) < 1.5 in norm each.
    """
    m, n, k, _ = V.shape
    cos, sin = np.array([[value / (1 << BITS) for value in point] for point in circle(N)]).T
    taps = V.transpose(2, 3, 0, 1).reshape(k * k, m * n)
    fixed = 2 * U * frobenius(np.abs(V).sum(axis=(2, 3))) + gamma(6) * frobenius(rounded.sum(axis=(2, 3)))
    for f, g in np.ndindex(N, N // 2 + 1):
        turns = np.add.outer(f * np.arange(k), g * np.arange(k)).reshape(-1) % N
        parts, error = product(np.stack((cos[turns], -sin[turns])), taps, 1)
        re, im = parts.reshape(2, m, n)
        yield np.block([[re, -im], [im, re]]), up(1.5 * (float(error[0]) + 1.5 * fixed))


def reflector(h: Enclosure, kernel: Kernel, c_out: int, ridge: float, padding: int = 0) -> None:
    """Reflect the channels, of every pixel or, for a kernel, at every frequency. No step increases norms."""
    V, b, own = kernel[0], h.x.shape[-1], np.zeros(h.x.shape[-1])
    if V.ndim == 2:
        w, own = reflected(V, up(gamma(5) * frobenius(kernel[1])), ridge, h.x.reshape(len(h.x), -1), b)
        return h.become(w[:c_out].reshape(c_out, *h.x.shape[1:]), own)
    c, s, m, N = len(h.x), h.x.shape[1], len(V), h.x.shape[1] + 2 * padding
    half, (across, down) = N // 2 + 1, bases(N, s)

    def transformed(D: Array, x: Array) -> Array:
        nonlocal own  # entries of D err by u of themselves and less than 2^-100
        y, error = product(D, x.reshape(D.shape[1], -1), b)
        own = own + error + (U * frobenius(D) + D.size * 2.0**-100) * sizes(x, b)
        return y

    x = np.pad(h.x, ((0, m - c), (0, 0), (0, 0), (0, 0))).transpose(2, 1, 0, 3)  # column, row, channel, image
    x = transformed(across, x).reshape(half, 2, s, m, b).transpose(2, 1, 0, 3, 4)  # row, re/im, frequency across, ...
    x = transformed(down, x).reshape(N, 2, half, m, b).transpose(0, 2, 1, 3, 4)  # frequencies down, across, re/im, ...
    y, squares = np.empty((N * half, 2, c_out, b)), np.zeros(b)
    for f, (matrix, u) in enumerate(zip(spectrum(*kernel, N), x.reshape(N * half, 2 * m, b), strict=True)):
        w, error = reflected(*matrix, ridge, u, b)
        y[f], squares = w.reshape(2, m, b)[:, :c_out], squares + error**2
    own = own + np.sqrt(squares)
    x = y.reshape(N, half, 2, c_out, b).transpose(0, 2, 1, 3, 4)
    x = transformed(down.T, x).reshape(s, 2, half, c_out, b).transpose(2, 1, 0, 3, 4)
    return h.become(transformed(across.T, x).reshape(s, s, c_out, b).transpose(2, 1, 0, 3), own)


# 5. The Cholesky map W = L^-1 V, L L' = S = V V' + e I, with the ridge of section 3.
def cholesky_map(h: Enclosure, kernel: Kernel, c_out: int, _ridge: float) -> None:
    """Apply the map to channels. W W' = I - e S^-1, so |W|^2 = q / (q + e) with q = lambda_max(V V').

    Let T be lower triangular with a positive diagonal, G = T S T' = I + F, |F|_F <= d. Cholesky factors are unique, so
    L = T^-1 C with C C' = G, and W = C^-1 T V. With C = I + M we have M + M' = F - M M', so M, being lower triangular,
    is low(F - M M'), the lower half with half of the diagonal, and |low(X)|_F <= |X|_F / sqrt(2) for symmetric X. Hence
    |M|_F <= (d + |M|_F^2) / sqrt(2). M is continuous in F and vanishes with it: if d <= 0.4, |M|_F is at most the
    smaller root, which is at most d. So C^-1 is I - low(F) up to |M M'| + |M^2 C^-1| <= 3 d^2. Computed from X = T V
    and T, F is D up to g; |X| <= sqrt(1 + d) <= 1.2.
    """
    V, eta, (m, n) = kernel[0], up(gamma(5) * frobenius(kernel[1])), kernel[0].shape
    require(m == c_out <= n, f"a Cholesky layer must have {c_out} outputs, and no fewer inputs, got {m} of {n}")
    e, e_error = ridge_of(V, eta, CHOLESKY_RIDGE / m)
    VV, VV_error = product(V, V.T, 1)
    q = largest_eigenvalue(VV, up(float(VV_error[0]) + 2 * eta * frobenius(V) + eta**2))
    T = np.tril(np.linalg.inv(np.linalg.cholesky(VV + e * np.eye(m))))
    (X, X_error), (TT, TT_error) = product(T, V, 1), product(T, T.T, 1)
    XX, XX_error = product(X, X.T, 1)
    D = XX + e * TT - np.eye(m)
    x_error = up(float(X_error[0]) + eta * frobenius(T))
    g = float(XX_error[0]) + 2.4 * x_error + x_error**2 + e * float(TT_error[0])
    g = up(g + (e_error + 3 * U * e) * frobenius(TT) + 2 * U * frobenius(XX) + U * frobenius(D))
    d = up(frobenius(D) + g)
    require(d <= 0.4 and (T.diagonal() > 0).all(), f"a Cholesky layer is too ill-conditioned to be enclosed: {d:.1e}")
    W = X - (np.tril(D) - np.diag(D.diagonal() / 2)) @ X
    W_error = up(1.2 * (3 * d**2 + g) + 1.5 * x_error + gamma(m + 1) * d * frobenius(X) + U * frobenius(W))
    y, own = product(W, h.x.reshape(n, -1), h.x.shape[-1])
    own = up(own + W_error * sizes(h.x, h.x.shape[-1]))
    h.become(y.reshape(m, *h.x.shape[1:]), own, up(math.sqrt(q / (q + e - e_error))))


# 6. The two networks, layer by layer, from the tensors of the weights' file.
def normalised_head(h: Enclosure, weight: Array) -> Head:
    """Rows are divided by their lengths: a sum of n squares, a root and a quotient err by gamma_{n + 3} of the row."""
    rows = weight / np.sqrt((weight * weight).sum(axis=1, keepdims=True))
    slack = gamma(rows.shape[1] + 8)
    gaps = np.sqrt(np.stack([((rows - row) ** 2).sum(axis=1) for row in rows])) * (1 + slack) + 3 * slack
    logits, own = product(rows, h.x, h.x.shape[-1])
    return logits, own + slack * sizes(h.x, h.x.shape[-1]), up(gaps)


def orthogonal_head(h: Enclosure, weight: Array) -> Head:
    """The first n rows of a reflector: any two of them differ by sqrt(2) at most, as |W'(e_t - e_j)| <= |e_t - e_j|."""
    w, own = reflected(weight, 0.0, SEMI_ORTHOGONAL_RIDGE, h.x, h.x.shape[-1])
    n = weight.shape[1]  # the number of classes
    return w[:n], own, np.full((n, n), up(math.sqrt(2)))


def residual(take: Callable[[str], Array], name: str, depth: int) -> Kernel:
    """Return the kernel I + alpha / sqrt(depth) weight, I being the identity at the centre tap; depth 0: the weight."""
    weight = take(f"{name}.weight")
    if depth == 0:
        return weight, 0 * weight
    V = (take(f"{name}.residual.alpha") / math.sqrt(depth)).reshape(-1, *(1 for _ in weight.shape[1:])) * weight
    rounded, i = np.abs(V), np.arange(min(weight.shape[:2]))
    centre = (i, i, *(size // 2 for size in weight.shape[2:]))
    V[centre] += 1
    rounded[centre] += np.abs(V[centre])
    return V, rounded


def bronet(h: Enclosure, a: Settings, take: Callable[[str], Array]) -> Head:
    """Stem, BRO convolutions, neck, dense layers, normalised head."""
    linear: dict[str, Callable[..., None]] = {"bro": reflector, "cholesky": cholesky_map}
    neck, dense = linear[a["neck"]], linear[a["dense"]]
    padding = 0 if a["padding_mode"] == "circular" else 1
    affine(h, -take("normalization.mean"))
    strided_convolution(h, take("stem.linear.weight"), a["stem_stride"], a["stem_padding"])
    activated(h, take("stem.shift.bias"))
    for i in range(a["depth"]):
        reflector(h, residual(take, f"backbone.{i}.linear", a["depth"]), a["width"], RIDGE, padding)
        shift = take(f"backbone.{i}.shift.bias").astype(np.float32)
        if a["centring"]:  # N has the difference of the two float32 numbers, as a float32 number
            shift = shift - take(f"backbone.{i}.shift.mean").astype(np.float32)
        activated(h, shift.astype(np.float64))
    unshuffle(h, a["neck_patch"])
    neck(h, residual(take, "neck.conv", 0), a["width"], SEMI_ORTHOGONAL_RIDGE)
    if not a["published_neck"]:
        affine(h, take("neck.conv_bias.bias"))
        h.x = h.x.transpose(1, 2, 0, 3)  # pixel by pixel
    h.x = h.x.reshape(-1, h.x.shape[-1])
    neck(h, residual(take, "neck.dense.linear", 0), a["dense_width"], SEMI_ORTHOGONAL_RIDGE)
    activated(h, take("neck.dense.shift.bias"))
    for i in range(a["dense_depth"]):
        dense(h, residual(take, f"dense.{i}.linear", a["dense_depth"]), a["dense_width"], RIDGE)
        activated(h, take(f"dense.{i}.shift.bias"))
    return normalised_head(h, take("head.weight"))


def lipconvnet(h: Enclosure, a: Settings, take: Callable[[str], Array]) -> Head:
    """Five stages that halve the image and double the width; a kernel of one tap is a matrix for every pixel."""
    width, kept = a["width"], a["depth"] // 5 - 1
    affine(h, -take("normalization.mean"), COMMON_STD)
    for stage in range(5):
        for i, stride in enumerate([1] * kept + [2] if a["strided_last"] else [2] + [1] * kept):
            c_out = width if a["strided_last"] and stride == 1 else 2 * width
            pointwise = stride == 2 and (stage == 4 or a["kernel"] == 1)
            name = f"stages.{stage}.{i}.1" if pointwise else f"stages.{stage}.{i}"
            unshuffle(h, stride)
            reflector(h, residual(take, f"{name}.linear", 0), c_out, SEMI_ORTHOGONAL_RIDGE, a["kernel"] // 2)
            activated(h, take(f"{name}.shift.bias"))
        width *= 2
    h.x = h.x.transpose(1, 2, 0, 3).reshape(-1, h.x.shape[-1])
    lln = a["head"] == "lln"
    return normalised_head(h, take("head.weight")) if lln else orthogonal_head(h, take("head.linear.weight"))


# 7. Files. Whatever is not expected is refused.

COUNT, SWITCH, EITHER = range(4097), (True, False), ("bro", "cholesky")
SIZES = ("width", "depth", "dense_depth", "dense_width", "neck_patch", "stem_kernel", "stem_stride", "stem_padding")
KNOWN: Settings = dict.fromkeys((*SIZES, "kernel"), COUNT) | {  # the values that settings may have
    "family": ("bronet", "lipconvnet"), "backbone": ("bro",), "dense": EITHER, "neck": EITHER, "centring": SWITCH,
    "regularized_depth": (0,), "padding_mode": (None, "zeros", "circular"), "keep_padding": (False,),
    "activation": ("maxmin",), "head": ("lln", "bro"), "strided_last": SWITCH, "published_neck": SWITCH,
}  # fmt: skip
WORDS = {"true": True, "false": False, "null": None}
HEADER = ["index", "label", "prediction", "correct", "margin", "radius", "naive_radius"]


def read_rows(path: Path) -> dict[int, tuple[int, int, float]]:
    """Return label, prediction and radius of every row of a certificate, by its index."""
    header, *lines = (line.split(",", len(HEADER)) for line in path.read_text(encoding="utf-8").splitlines())
    known = header in (HEADER, [*HEADER, "file"]) and all(len(row) == len(header) for row in lines)
    require(known, f"{path} must have columns {HEADER}")
    rows = {int(row[0]): (int(row[1]), int(row[2]), float(row[5])) for row in lines}
    require(len(rows) == len(lines) and all(t >= 0 for _, t, _ in rows.values()), f"{path}: indices and classes")
    return rows


def read_weights(path: Path) -> dict[str, Array]:
    """Return the tensors of a safetensors file: the header's length, the header in JSON, the numbers."""
    content, tensors = path.read_bytes(), {}
    start = 8 + int.from_bytes(content[:8], "little")
    for name, entry in json.loads(content[8:start]).items():
        if name != "__metadata__" and not name.endswith(".power_vector"):  # which only training reads
            dtype, (begin, end) = entry["dtype"], entry["data_offsets"]
            words = np.frombuffer(content[start + begin : start + end], {"F32": "<u4", "BF16": "<u2"}[dtype])
            words = words.astype(np.uint32) << (16 if dtype == "BF16" else 0)  # bf16 is the upper half of float32
            tensors[name] = words.view(np.float32).astype(np.float64).reshape(entry["shape"])
            require(np.isfinite(tensors[name]).all(), f"{name} must be finite")
    return tensors


def read_recipe(path: Path) -> tuple[str, Settings]:
    """Return the data set's name and the table `model` of a config.json, or of the two levels of a recipe.yaml."""
    text, table = path.read_text(encoding="utf-8"), Settings()
    tables: dict[str, Settings] = json.loads(text)["recipe"] if path.suffix == ".json" else {}
    for line in text.splitlines() if path.suffix != ".json" else ():
        match = re.fullmatch(r"( {2})?(\w+):(?: '?(.+?)'?)?|  - .*", line)
        inner, key, value = match.groups() if match else ("", "", "")
        require(key != "" and key not in (table if inner else tables), f"{path}: the line {line!r} is not expected")
        if inner:
            table[key] = int(value) if (value or "").isdecimal() else WORDS.get(value, value)
        elif key:
            table = tables[key] = {}
    for key, value in tables["model"].items():
        good = any(type(value) is type(known) and value == known for known in KNOWN.get(key, ()))
        require(good or key == "rank", f"{path}: model.{key} = {value!r} is not known here")  # V's shape is its rank
    return str(tables["data"]["name"]), {"padding_mode": None, "published_neck": False} | tables["model"]


# 8. The claim. At distance r from x the input of the head is within L r + error of the computed one, L the product of
# the layers' constants, so f_t - f_j is at least (l_t - l_j) - gap_tj (L r + error) - 2 own, for the computed logits l.
def spare_margins(images: Array, model: Settings, tensors: dict[str, Array], claims: list[Any]) -> list[float]:
    """Return how much every image's claimed class is ahead in N, at least, in all of its ball; NaN if nothing holds."""
    h = Enclosure(images, up(U * sizes(images, images.shape[-1])), 1.0)  # byte / scale was rounded
    unused, build = dict(tensors), {"bronet": bronet, "lipconvnet": lipconvnet}[model["family"]]
    bias = unused.pop("head.bias")[:, None]
    linear, own, gaps = build(h, model, unused.pop)
    require(not unused, f"the weights hold tensors that the recipe does not use, such as {list(unused)[:1]}")
    logits = linear + bias
    own = own + 3 * U * np.abs(logits).max(axis=0)  # the sum was rounded, and the difference of two will be
    t, r, every = [claim[1] for claim in claims], np.array([claim[2] for claim in claims]), np.arange(len(claims))
    lost = up(gaps[t].T * up(h.lipschitz * r + h.error) + 2 * own)
    ahead = (logits[t, every] - logits) - lost
    ahead[t, every] = math.inf
    return ahead.min(axis=0).tolist()


def main() -> int:
    """Print what is confirmed and what is not; return 0 if all images are, 1 if not, 2 if nothing can be said."""
    parser = argparse.ArgumentParser(description="Confirm a certificate without trusting the program that made it.")
    parser.add_argument("files", nargs=3, type=Path, metavar="WEIGHTS | RECIPE | CERTIFICATE")
    parser.add_argument("--images", type=Path, required=True)
    a = parser.parse_args()
    failed, least = 0, math.inf
    try:
        tensors, (data, model), rows = read_weights(a.files[0]), read_recipe(a.files[1]), read_rows(a.files[2])
        with a.images.open("rb") as raw, np.load(raw, allow_pickle=False) as file, np.errstate(all="ignore"):
            images, labels = file["images"], file["labels"]
            index = (file["index"] if "index" in file else np.arange(len(images))).tolist()
            require(images.dtype == np.uint8 and images.shape[2] == images.shape[3], "images must be square, of bytes")
            require(len(set(index)) == len(labels) == len(images) > 0, "every image must have a label and its own row")
            for part in (slice(i, i + 500) for i in range(0, len(images), 500)):
                x = images[part].transpose(1, 2, 3, 0) / (16 if data == "digits" else 255)
                claims = [rows[i] for i in index[part]]
                spare = spare_margins(x, model, tensors, claims)
                for i, label, claim, margin in zip(index[part], labels[part], claims, spare, strict=True):
                    least = min(least, margin)
                    if not (margin > 0 and claim[2] >= 0 and claim[0] == label):
                        failed += 1
                        print(f"not confirmed: image {i} of class {label}: {claim}, spare margin {margin:.1e}")
    except Exception as error:
        print(f"nothing is confirmed: {error!r}", file=sys.stderr)
        return 2
    print(f"{len(images) - failed} of {len(images)} images confirmed, {len(rows)} rows; least spare margin {least:.1e}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

"""The BRO convolution as the paper writes it (Proposition 2, Algorithm 1): FFT, one c x c reflector per frequency, FFT.

The readable reference. It forms every W, computes with complex numbers, and is what the real form is tested and
timed against; half of the spectrum suffices, because everything is real in space. Algorithm 1 crops k:-k in its
last line; the stated shapes need k':-k', which is what is done here.
"""

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, fft

from bronet.ortho.reflector import block_reflector
from bronet.ortho.spd import BRO_RIDGE


def textbook_bro_convolution(
    x: Float[Tensor, "b c_in h w"],
    V: Float[Tensor, "c n k k"],
    *,
    c_out: int,
    padding: int | None = None,
    keep_padding: bool = False,
    ridge: float = BRO_RIDGE,
) -> Float[Tensor, "b c_out h_out w_out"]:
    """Return the BRO convolution of x: orthogonal on the padded grid, a contraction once cropped.

    `padding` is k' on each side (default k // 2; zero makes the convolution circular); c = max(c_in, c_out).
    """
    c_in, k = x.shape[1], V.shape[-1]
    pad = k // 2 if padding is None else padding
    x = F.pad(x, (pad, pad, pad, pad))
    size = (x.shape[-2], x.shape[-1])
    X = fft.rfft2(x)  # b c_in H W/2+1
    V_f = fft.rfft2(V, s=size).permute(2, 3, 0, 1)  # H W/2+1 c n
    W = block_reflector(V_f, ridge=ridge)[..., :c_out, :c_in]
    Y = (W @ X.permute(2, 3, 1, 0)).permute(3, 2, 0, 1)
    y = fft.irfft2(Y, s=size)
    return y if keep_padding or pad == 0 else y[..., pad:-pad, pad:-pad]

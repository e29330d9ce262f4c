"""From one word to a convolution: every layer of the comparison, and layers of one's own, behind the same call."""

from typing import Never

from bronet.errors import BronetError
from bronet.layers.bro_conv import BROConv2d
from bronet.layers.convolution import AnyConvolution, Convolution
from bronet.layers.regularized_conv import LipschitzRegularizedConv2d
from bronet.layers.rivals.fourier import CayleyConv2d, CholeskyConv2d, ECOConv2d, LOTConv2d, SandwichConv2d
from bronet.layers.rivals.potential import CPLConv2d, SLLConv2d
from bronet.layers.rivals.spatial import AOLConv2d, BCOPConv2d, SOCConv2d, StandardConv2d
from bronet.wording import is_short_word


class Kinds(dict[str, type[AnyConvolution]]):
    """Kinds of convolutions by their words."""

    def __missing__(self, name: str) -> Never:
        raise BronetError(
            f"convolution must be one of {', '.join(self)}, got {name!r}; "
            "a layer of your own is made known by bronet --layers FILE ..."
        )


CONVOLUTIONS = Kinds(
    bro=BROConv2d,
    soc=SOCConv2d,
    lot=LOTConv2d,
    cayley=CayleyConv2d,
    cholesky=CholeskyConv2d,
    bcop=BCOPConv2d,
    eco=ECOConv2d,
    aol=AOLConv2d,
    cpl=CPLConv2d,
    sll=SLLConv2d,
    sandwich=SandwichConv2d,
    lipreg=LipschitzRegularizedConv2d,
    standard=StandardConv2d,
)
"""Every kind of convolution by its word, one's own too: `CONVOLUTIONS["soc"](8, 16, stride=2)` is a layer."""


def register_convolution(name: str, kind: type[AnyConvolution]) -> None:
    """Make a convolution of one's own known by one word, in `CONVOLUTIONS` and in recipes (`model.backbone`).

    It keeps the constructor of `Convolution`, and makes its parameters in `make_parameters`. A certificate asks the
    layer for its proof, and is as good as that. A name that is taken is refused.
    """
    if not isinstance(name, str) or not is_short_word(name):
        raise BronetError(f"name of a convolution must be a short word such as my-layer, in lower case, got {name!r}")
    if name in CONVOLUTIONS:
        raise BronetError(f"name of a convolution must be new, but {name!r} is registered already; choose another")
    if not (isinstance(kind, type) and issubclass(kind, Convolution)):
        raise BronetError(f"a convolution must be a class derived from bronet.layers.Convolution, got {kind!r}")
    CONVOLUTIONS[name] = kind

"""From one word to a convolution: every layer of the comparison, and layers of one's own, behind the same call."""

from collections.abc import Callable
from typing import Concatenate, Never, ParamSpec, cast

from bronet.errors import BronetError
from bronet.layers.bro_conv import BROConv2d
from bronet.layers.convolution import AnyConvolution, Convolution
from bronet.layers.regularized_conv import LipschitzRegularizedConv2d
from bronet.layers.rivals.fourier import CayleyConv2d, CholeskyConv2d, ECOConv2d, LOTConv2d, SandwichConv2d
from bronet.layers.rivals.potential import CPLConv2d, SLLConv2d
from bronet.layers.rivals.spatial import AOLConv2d, BCOPConv2d, SOCConv2d, StandardConv2d
from bronet.wording import is_short_word

P = ParamSpec("P")


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


def register_convolution(name: str, kind: type[AnyConvolution]) -> None:
    """Make a convolution of one's own known by one word: to `create_convolution`, and to recipes (`model.backbone`).

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


def _created_by_name(_arguments_of: Callable[P, AnyConvolution]) -> Callable[Concatenate[str, P], AnyConvolution]:
    def create_convolution(name: str, /, *args: P.args, **kwargs: P.kwargs) -> AnyConvolution:
        """Return a convolution of this kind: "bro", "soc", "lot", "cayley", ... (`CONVOLUTIONS` has them all).

        The other arguments are those of `Convolution`; what the kind does not have is refused.
        """
        kind = cast(Callable[P, AnyConvolution], CONVOLUTIONS[name])
        return kind(*args, **kwargs)

    return create_convolution


create_convolution = _created_by_name(BROConv2d)

"""Models of others: `convert` rebuilds a plain torch model of Lipschitz layers, `check` bounds any model as it is."""

from bronet.foreign.checking import Checked, LayerCheck, check
from bronet.foreign.conversion import convert

__all__ = ["Checked", "LayerCheck", "check", "convert"]

"""The facts of a finished attack are counted again from the rows beside them, before any table shows them."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

from bronet.errors import BronetError
from bronet.files import Json, shown
from bronet.radius import implied_radius
from bronet.recipe.schema import parse_budget
from bronet.run.attack_rows import count_rows, read_attack_rows

TOLERANCE = 1e-9
"""Between a share as written and as counted again: far less than one image of a million."""


def check_attack(path: Path, facts: Json, *, pixels: int | None, network: Mapping[str, str]) -> None:
    """Raise unless a finished attack's facts are those of the rows beside them, and its name is that of its file.

    `network` are the hashes of the certified one: an attack on another must not stand beside its certificate. A file
    without rows is taken at its word, and so is the certified share where the number of pixels is not known.
    """
    rows = read_attack_rows(path.with_suffix(".csv"))
    if "robust_accuracy" not in facts or not rows:
        return
    if not path.name.startswith(f"attack-{facts.get('attack')}-{facts.get('norm')}-"):
        named = f"{shown(facts.get('attack'))} {shown(facts.get('norm'))}"
        raise BronetError(f"{path} must be named after its attack, got {named}")
    for key, certified in network.items():
        if facts.get(key, certified) != certified:
            raise BronetError(f"{path} must be of the network that was certified, but {key} differs; attack again")
    for key, value in count_rows(rows, certifies=_certifies(facts, pixels)).facts().items():
        told = facts.get(key)
        if not (isinstance(told, int | float) and abs(told - value) <= TOLERANCE):  # a NaN is not, either
            raise BronetError(f"{path}: {key} must be that of its rows, {value!r}, got {shown(told)}; attack again")


def _certifies(facts: Json, pixels: int | None) -> Callable[[float], bool] | None:
    """Return whether an l2 radius exceeds the attack's budget, as a function; None where that cannot be told."""
    if pixels is None:
        return None
    eps = parse_budget(str(facts.get("eps")), name="eps")
    norm: Literal["l2", "linf"] = "linf" if facts.get("norm") == "linf" else "l2"
    return lambda radius: implied_radius(radius, norm=norm, pixels=pixels) > eps

"""Lipschitz constants from the image to every value of a graph, and what parts that meet again need not pay twice.

Disjoint parts of one value S that are processed apart and concatenated again move by |M t| at most, where t are the
movements of the parts, |t| <= |movement of S|, and M is a small matrix of constants that are not negative: each part
starts a row of its own, a map multiplies rows by its constant, a sum adds rows, a concatenation stacks them. At the
concatenation the norm of M multiplies the constant of S: for two halves the larger of two constants, where the root of
the sum of their squares is all that the joined distances say.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bronet.proof.budget import joined_constant
from bronet.proof.proved_map import Join, ProvedMap
from bronet.proof.rounding import up
from bronet.proof.spectral import largest_singular_value

Row = tuple[float, ...]


@dataclass(frozen=True)
class ProvedNode:
    """A proved map of the graph by its name, and which values it takes: 0 is the image, k + 1 what node k gives."""

    name: str
    proved: ProvedMap
    inputs: tuple[int, ...]


def constants_of(nodes: Sequence[ProvedNode], selected: dict[int, Tensor]) -> tuple[float, ...]:
    """Return an upper bound on the constant from the image to every value, the image's own first.

    `selected` says of values that are entries of the one input of their node, unchanged, which ones: flat indices.
    """
    constants, rows = [1.0], [dict[int, Row]()]
    parts = _disjoint_parts(nodes, selected)
    for value, node in enumerate(nodes, start=1):
        L, join = node.proved.lipschitz, node.proved.join
        best = up(joined_constant([constants[i] for i in node.inputs], join) * L)
        own: dict[int, Row] = {}
        for source in set.intersection(*(set(rows[i]) for i in node.inputs)):
            matrix = [rows[i][source] for i in node.inputs]
            own[source] = tuple(up(joined_constant(column, join) * L) for column in zip(*matrix, strict=True))
            # Seen from the source: the norm of M where rows are stacked, that of the one row where they are added.
            relative = up(_norm(matrix) * L) if join is Join.ROOT_OF_SQUARES else _norm([own[source]])
            best = min(best, up(relative * constants[source]))
            for outer, before in rows[source].items():
                through = tuple(up(relative * entry) for entry in before)
                own[outer] = min(own.get(outer, through), through, key=sum)
        if value in parts:
            source, position, count = parts[value]
            own[source] = tuple(float(k == position) for k in range(count))
        constants.append(best)
        rows.append(own)
    return tuple(constants)


def _norm(matrix: Sequence[Row]) -> float:
    return largest_singular_value(torch.tensor(matrix, dtype=torch.float64))


def _disjoint_parts(nodes: Sequence[ProvedNode], selected: dict[int, Tensor]) -> dict[int, tuple[int, int, int]]:
    """Return, for parts of a value of which no two share an entry: the value, the part's number, and how many."""
    by_source: dict[int, list[int]] = {}
    for value in selected:
        by_source.setdefault(nodes[value - 1].inputs[0], []).append(value)
    found: dict[int, tuple[int, int, int]] = {}
    for source, parts in by_source.items():
        entries = torch.cat([selected[part].flatten() for part in parts]).sort().values
        if len(parts) > 1 and bool((entries[1:] > entries[:-1]).all()):
            found |= {part: (source, position, len(parts)) for position, part in enumerate(parts)}
    return found

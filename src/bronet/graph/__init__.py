"""Models as graphs of proved maps: any module is read, bounded and proved; torch's own are converted."""

from bronet.graph.checking import Checked, check
from bronet.graph.conversion import Converted, convert
from bronet.graph.model import CertifiableModel, Chain
from bronet.graph.network import ProvedBatch, ProvedNetwork, prove
from bronet.graph.operations import Operation

__all__ = [
    "CertifiableModel",
    "Chain",
    "Checked",
    "Converted",
    "Operation",
    "ProvedBatch",
    "ProvedNetwork",
    "check",
    "convert",
    "prove",
]

"""Certificates: checkpoint and images in, one row per image out."""

from bronet.certificates.network import Certificate, ProvedNetwork, certified_radius, prove

__all__ = ["Certificate", "ProvedNetwork", "certified_radius", "prove"]

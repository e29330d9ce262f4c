"""Certificates: checkpoint and images in, one row per image out."""

from bronet.certificates.images import Certificates, certified_radius, certify

__all__ = ["Certificates", "certified_radius", "certify"]

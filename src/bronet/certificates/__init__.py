"""Certificates: checkpoint and images in, one row per image out."""

from bronet.certificates.images import certified_radius

__all__ = ["certified_radius"]

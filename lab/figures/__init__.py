"""Drawings of the documentation, as SVG files that come out the same every time."""

"""Experiments on single layers: questions about a construction, answered with rows and a figure."""

"""Experiments behind single figures and claims of the paper: losses, landscapes, capacity, LOT's iteration."""

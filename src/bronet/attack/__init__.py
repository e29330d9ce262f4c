"""Attacks: what an adversary finds, to set against what a certificate proves."""

from bronet.attack.search import Attack, l2_pgd, linf_pgd, pgd

__all__ = ["Attack", "l2_pgd", "linf_pgd", "pgd"]

"""The layers that BRO is compared with, each written from its formula, with the same interface and a proved bound."""

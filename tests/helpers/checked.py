"""The run-time type checker of the tests: beartype, with an int accepted where a float is meant (PEP 484)."""

from beartype import BeartypeConf, beartype

checked = beartype(conf=BeartypeConf(is_pep484_tower=True))

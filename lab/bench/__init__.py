"""Timings, as rows: what `docs/speed.md` and `results/bench` are made of. Never a test's assertion."""

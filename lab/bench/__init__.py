"""Timings, as rows: what `docs/speed.md` and `lab/results/bench` are made of. Never a test's assertion."""

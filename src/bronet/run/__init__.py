"""A run's files: its folder, weights, record and rows, which every command that works on a run shares."""

"""The laboratory: what made the paper's tables, its figures and the speed-run. Not part of the released package."""

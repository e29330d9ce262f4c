"""Upper bounds that count their own rounding, in float64: what certificates are made of (docs/soundness.md)."""

"""Peaks with a declared risk: resampled futures, pooled margins and a risk that outcomes steer."""

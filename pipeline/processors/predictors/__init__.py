"""Predictors of peaks, a file each, and the registry by which they are found."""

"""Predictors of peaks, one a file: a class that declares its options, terms and formula.

A module that holds a `PREDICTOR` is a predictor that `model.predictors` can name; `registry` finds
it, and those of other packages. `suite` holds the laws of all predictors.
"""

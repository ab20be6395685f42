"""Scorers: how good nodes are for a pod, one plugin a file.

A module that holds a `SCORER` (see `scorer`) is a plugin of the extender; `registry` finds it, and
those of other packages. Amounts are int64 or float64 arrays (nodes,) in whole millicores and bytes;
NaN is unknown. Scores are int64 (nodes,) from 0 to 100. `suite` holds the laws of all scorers.
"""

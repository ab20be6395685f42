"""Recorded cases of upstream's behaviour, run through the product.

`python -m tests.vectors FILE...` runs files of the form {"groups": [{"group": .., "cases":
[{"name": .., "input": .., "expected": ..}]}]}. A module of this package declares the groups that it
runs in `GROUPS`, by name; `not_built` names those that the product does nothing for yet.
`broken` holds a mutation for every group that must turn one of its cases red.
"""

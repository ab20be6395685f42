"""Compute and decide what nodes offer to Mid and Batch, for many nodes at once.

`resource_columns` has the input columns, `mid` and `batch` the amounts with their terms.
`offer_decision` and `status_patch` decide which amounts are written to a Node, and when.
`third_party` reads what other frameworks allocate. Amounts are int64 (nodes, 2), millicores and
bytes.
"""

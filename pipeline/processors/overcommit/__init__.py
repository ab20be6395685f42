"""Compute and decide what nodes offer to Mid and Batch, for many nodes at once.

`mid` and `batch` have the formulas, with their text for `explain`; `resource_columns` has their
inputs, `node_offers` makes the records. `offer_decision` and `status_patch` decide which amounts
are written to a Node, and when. `third_party` reads what other frameworks allocate. Amounts are
int64 (nodes, 2), millicores and bytes.
"""

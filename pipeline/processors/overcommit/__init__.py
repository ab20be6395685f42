"""What nodes offer to Mid and Batch, for many nodes at once.

`resource_columns` has the columns that all modules read, `batch` and `mid` the amounts with their
terms, `status_patch` and `offer_decision` what is written to nodes and when, `third_party` what
other frameworks took. Amounts are int64 (nodes, 2) in millicores and bytes.
"""

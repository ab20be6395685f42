"""The HTTP service that a scheduler asks, over the state table.

`protocol` reads and writes kube-scheduler's messages, `decide` turns the table into an answer,
`server` serves it.
"""

"""Every topic in one place each: record type, key, codec, partitioning and retention.

This layer imports neither Faust nor numpy, so that the node exporter stays small. `registry`
declares all topics; one module per topic holds its record; `codec` turns records into bytes and
back with errors that a dead letter can carry; `arrow` (the only module that needs pyarrow) reads
the columnar topics.
"""

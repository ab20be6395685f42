"""What a record is: the type, key and codec of every topic.

`registry` declares the topics. Each topic has a module with its record type. `codec` encodes and
decodes records; its errors can go into a dead letter. `arrow` reads the columnar topics, and is the
only module that needs pyarrow, so that the node exporter stays small.
"""

"""Faust agents, thin: read a topic, call a processor, publish.

`consume` is the one safe loop over what Faust reads, the samples. `join` makes windows of them and
writes the log of record; `handover` brings each to `model` in memory, and reads from the log what
was not handed over; `model` applies a partition in order, `learning` the windows of all partitions
together and says what is published. `recovery` loads a partition that was gained, `rounds` writes
its checkpoints; `worker` wires all of it into a Faust app. Positions in the logs are kept here, by
offset: Faust's commits decide nothing.
"""

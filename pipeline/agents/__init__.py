"""Faust agents, thin: read a topic, call a processor, publish.

`consume` is the one safe loop that every agent runs; `join` writes the log of record, `model`
applies it; `recovery` loads a partition that was gained, `rounds` writes its checkpoints; `worker`
wires them into a Faust app. Positions in the logs are kept here, by offset: Faust's commits decide
nothing.
"""

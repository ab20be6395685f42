"""Actuators: consumers that make the world match the result topics.

`actuators.cluster` writes Kubernetes objects, `actuators.eviction` evicts pods; `actuators.node`
will write cgroups. An actuator compares the desired state with the actual one and writes the
difference. Nothing changes unless its mode is `act`.
"""

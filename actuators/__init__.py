"""Actuators: write published results to a Kubernetes cluster.

`actuators.cluster` writes Kubernetes objects, `actuators.eviction` evicts pods. An actuator
compares the desired state with the actual one and writes the difference, as its mode allows.
"""

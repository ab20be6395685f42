"""Kubernetes objects as records: pods, nodes and workloads, their classes and resources."""

"""Providers: usage of nodes and pods from elsewhere, for clusters without our exporter.

`provider` is what each of them owes; `prometheus`, `metrics_server` and `stream`, our own samples,
are those that there are. `known` follows what the topics say of nodes, pods and exporters, `rounds`
brings window after window onto `springtide.samples`, `page` says how it goes.
"""

"""The API server as our parts speak with it: requests, list-watch, and leadership by Lease.

`client` has one session with TLS and whatever credentials the kubeconfig says, `watching` follows
one kind of object without keeping any, `lease` makes one of several the leader. None of it knows
what the objects are for.
"""

"""Join each sample with the cluster state of its node into one window, and make views of nodes.

`sample_join` joins. `node_facts` and `pod_facts` compute the facts of a node and its pods in a
window; `view_documents` makes the document for the node's actuator. Nothing here looks anything up:
the caller passes the cluster state as it knows it.
"""

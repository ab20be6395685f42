"""Join each sample with the cluster state of its node into one window, and describe nodes as views.

`sample_join` joins. `node_facts` and `pod_facts` compute what a window holds of a node and its pods;
`view_documents` puts both together for the node's actuator. Nothing here waits or looks anything up:
the caller passes the cluster state as it knows it.
"""

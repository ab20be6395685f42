"""LoadAwareScheduling of Koordinator: nodes by what they use, and by what is on its way to them.

`args` are what users configure, by upstream's names; `estimate` is what a pod will use before
anybody has measured it, `in_flight` what of it is not in a node's usage yet; `compare` says which
usage counts and where it is too much, or how much is left. Amounts are whole millicores and bytes.
"""

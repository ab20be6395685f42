"""What is left over on nodes for lower tiers, for many nodes at once.

`facts` has the columns that all of it reads, `reserved` what is kept for those outside of
Kubernetes, `batch` and `mid` the amounts for Batch and Mid with their terms, `numa` Batch per NUMA
zone. `writing` is what of it goes to nodes, and when; `third_party` what others have of it already;
`devices` what GPUs and the like come to. Amounts are int64 in millicores and bytes, an array of two
columns, as Kubernetes counts them: every cut is that of integers.
"""

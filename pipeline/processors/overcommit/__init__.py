"""What is left over on nodes for lower tiers, for many nodes at once.

`facts` has the columns that all of it reads, `reserved` what is kept for those outside of
Kubernetes, `batch` and `mid` the amounts for Batch and Mid with their terms. Amounts are int64 in
millicores and bytes, an array of two columns, as Kubernetes counts them: every cut is that of
integers.
"""

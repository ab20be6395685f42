"""How good nodes are for a pod: a scorer a file, each a pure function over columns of nodes.

Amounts are int64 or float64 arrays (nodes,) in whole millicores and bytes, and NaN, where a scorer
takes floats, is unknown. Scores are int64 (nodes,) from 0 to 100, as scheduler plugins give them;
a node of which nothing is known is never the best. `rounding` has what all of them round by.
"""

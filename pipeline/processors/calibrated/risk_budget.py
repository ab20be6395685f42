"""Spend the risk of a fleet where it buys most.

Each node takes one of several levels around the fleet's level, or gives nothing away at no risk.
At a price of risk, the best choice of a node is that with the least peak + price * risk; the price
is found at which the mean risk meets the level (Lagrange multiplier of a separable problem).
"""

from typing import Final

import numpy as np

from pipeline.processors.arrays import FloatArray

FACTORS: Final = np.array([0.5, 0.7, 1.0, 1.4, 2.0])
_BISECTIONS: Final = 30
_HIGHEST_PRICE: Final = 1e9


def spend(shares: FloatArray, risks: FloatArray, mean: float) -> tuple[FloatArray, FloatArray]:
    """The peak of each node and the risk that it takes, (nodes,) each.

    `shares` are peaks as shares of the node's requests, and `risks` the risk of each, (nodes,
    choices). A peak of all requests or more is cut at these and has no risk. The mean risk of all
    nodes is at most `mean`.
    """
    risks = np.append(np.where(shares < 1.0, risks, 0.0), np.zeros((len(risks), 1)), axis=1)
    shares = np.append(np.minimum(shares, 1.0), np.ones((len(shares), 1)), axis=1)
    low, high = 0.0, 1.0
    while _taken(shares, risks, high)[1].mean() > mean and high < _HIGHEST_PRICE:
        low, high = high, 4.0 * high
    for _ in range(_BISECTIONS):
        middle = 0.5 * (low + high)
        if _taken(shares, risks, middle)[1].mean() > mean:
            low = middle
        else:
            high = middle
    return _taken(shares, risks, high)


def _taken(shares: FloatArray, risks: FloatArray, price: float) -> tuple[FloatArray, FloatArray]:
    nodes = np.arange(len(shares))
    choice = np.argmin(shares + price * risks, axis=1)
    return shares[nodes, choice], risks[nodes, choice]

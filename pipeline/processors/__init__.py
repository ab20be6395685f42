"""The mathematics and the decisions: numpy arrays or plain values in, arrays or plain values out.

Nothing in here knows Kafka, Kubernetes, a clock or a random number without a seed, so the same
code runs live, in a replay and in a backtest, and gives the same bits.
"""

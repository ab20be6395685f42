"""Which nodes may take a pod, and which of them is best: what users configure, and the answer.

`config` reads a KubeSchedulerConfiguration, whose plugins and arguments hold here unchanged;
`reserved`, `bound` and `headroom` are rules of our own beside the plugins that others know
(`processors.loadaware`, `processors.scorers`); `combine` makes one score of many.
"""

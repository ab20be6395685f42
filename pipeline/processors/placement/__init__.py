"""Placement of pods: which plugins run, how their scores are combined, and who makes room.

`enabled_plugins` reads what a KubeSchedulerConfiguration enables, `scheduler_findings` checks the
scheduler's side of it, `combine_scores` makes one score of many, `victim_selection` chooses pods
that leave for others.
"""

"""Koordinator's custom resources of `slo.koordinator.sh/v1alpha1`, which we write in its stead.

`nodemetric` and `nodeslo` have the fields of both, `fields` what they share, `schema` makes the
definitions in `deploy/crds` of them. `rolling` averages windows over the time of a report, `report`
makes the status of a NodeMetric of what was averaged.
"""

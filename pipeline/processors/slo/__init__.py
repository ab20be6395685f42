"""Koordinator's custom resources of `slo.koordinator.sh/v1alpha1`, which Springtide writes.

`nodemetric` and `nodeslo` have their fields, `crd_fields` what both share, and `crd_schema` makes
the definitions in `deploy/chart/crds`. `rolling_usage` averages windows over the time of a report,
and `nodemetric_status` makes the status of a NodeMetric.
"""

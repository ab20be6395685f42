"""`springtide.resources`: the Mid and Batch resources of each node, with the terms of the formulas.

The model agent writes a record after every applied window of a node with an overcommit policy, and
a tombstone when the node departs or loses its policy. The key is the node. Amounts are whole
millicores and bytes. Readers offer nothing from a record whose `as_of` is older than the strategy's
`degrade_time_minutes`.
"""

import msgspec

from pipeline.topics.overcommit_policy import Overcommit
from pipeline.topics.resource_amounts import Resources
from pipeline.topics.result_header import Result


class MidTerms(msgspec.Struct, frozen=True, kw_only=True):
    """The terms of `mid`, by the formula of the strategy or in static mode.

    `reclaimable` is the part of Prod's requests (`allocated`) above `prod_peak`: the peak of Prod
    with the safety margin, plus the requests of pods without samples. `unused` is the part of the
    node that is not in use now, `unallocated` the part that no pod requests. `limit` is the maximum
    of Mid, `buffer` is subtracted from it.
    """

    allocatable: Resources = Resources()
    allocated: Resources = Resources()
    prod_peak: Resources = Resources()
    reclaimable: Resources = Resources()
    unused: Resources = Resources()
    unallocated: Resources = Resources()
    limit: Resources = Resources()
    buffer: Resources = Resources()


class BatchTerms(msgspec.Struct, frozen=True, kw_only=True):
    """The terms of `batch`: `capacity` minus `margin`, `outside`, `promised`, and one of `used`,
    `requested` and `larger`, as the policy chooses.

    `outside` is for processes outside of Kubernetes: their usage or `reserved`, whichever is
    larger. `promised` is the part of Mid that Mid's pods do not count for already. `buffer` is what
    is subtracted from the amount at the end.
    """

    capacity: Resources = Resources()
    margin: Resources = Resources()
    outside: Resources = Resources()
    reserved: Resources = Resources()
    used: Resources = Resources()
    requested: Resources = Resources()
    larger: Resources = Resources()
    promised: Resources = Resources()
    buffer: Resources = Resources()


class NodeResourcesRecord(Result, frozen=True, kw_only=True):
    """Mid and Batch of a node; None if a term of theirs is unknown.

    `mid_lower_bound` is the smallest Mid of all running predictors: actuators offer it while the
    record is old, but not yet too old. `strategy` is the policy in force. `window_seconds` is the
    interval of records, 0 if unknown.
    """

    strategy: Overcommit
    predictor: str
    window_seconds: float = 0.0
    simulated: bool = False
    mid: Resources | None = None
    mid_lower_bound: Resources | None = None
    batch: Resources | None = None
    mid_terms: MidTerms = MidTerms()
    batch_terms: BatchTerms = BatchTerms()

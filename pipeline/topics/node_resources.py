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

    allocatable: Allocatable of the node.
    allocated: Requests of Prod.
    prod_peak: Peak of Prod with the safety margin, plus the requests of pods without samples.
    reclaimable: Part of `allocated` above `prod_peak`.
    unused: Part of the node that is not in use now.
    unallocated: Part of the node that no pod requests.
    limit: The maximum of Mid.
    buffer: Subtracted from the amount at the end.
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

    capacity: Capacity of the node.
    margin: Part above the reclaim threshold, which is never offered.
    outside: For processes outside of Kubernetes: their usage or `reserved`, whichever is larger.
    reserved: What the node reserves for these processes.
    used: Usage of Prod and Mid pods; the request of a pod of unknown usage.
    requested: Requests of Prod and Mid pods.
    larger: Of each of these pods its usage or its request, whichever is larger.
    promised: Part of Mid that Mid's pods do not count for already.
    buffer: Subtracted from the amount at the end.
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

    strategy: The overcommit policy in force.
    predictor: The deciding predictor.
    window_seconds: Interval of records; 0 if unknown.
    simulated: Whether the node is simulated.
    mid: What pods of Mid may use.
    mid_lower_bound: The smallest Mid of all running predictors. Actuators offer it while the record
      is old, but not yet too old.
    batch: What pods of Batch may use.
    mid_terms: The terms of `mid`.
    batch_terms: The terms of `batch`.
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

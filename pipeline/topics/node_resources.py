"""`springtide.resources`: what each node has for Mid and Batch, with the terms it comes from.

Written by the model agent after every applied window of a node that takes part, keyed by node; a
tombstone when the node departs, or takes part no longer. Amounts are whole millicores and bytes.
How old they are is for readers to judge, by `as_of`: what is older than the strategy's
`degrade_time_minutes` offers nothing any more.
"""

import msgspec

from pipeline.topics.overcommit_terms import Overcommit
from pipeline.topics.resource_amounts import Resources
from pipeline.topics.result_header import Result


class MidTerms(msgspec.Struct, frozen=True, kw_only=True):
    """What `mid` is made of by the formula that the strategy names, or in static mode.

    `reclaimable` is what Prod leaves unused as the formula has it, of what Prod asked for
    (`allocated`) less its peak with the margin and with what pods ask for that were not measured
    yet (`prod_peak`), `unused` what the node does not use now, `unallocated` what nobody asked for,
    `limit` the most that Mid may be; `buffer` is held back of it.
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
    """What `batch` is made of: `capacity` less `margin`, `outside` (what goes to those outside of
    Kubernetes: what they use, or `reserved`), one of `used`, `requested` and `larger` as the policy
    has it, and what is `promised` to Mid beyond what Mid's pods count there already.
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
    """Mid and Batch of one node, None where something that they need is unknown.

    `mid_lower_bound` is Mid by the most careful of all predictors that run: what may still be
    offered while what is known is old, and not yet too old. `strategy` is the one in force, and
    `window_seconds` how often there is a new one, 0 is unknown.
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

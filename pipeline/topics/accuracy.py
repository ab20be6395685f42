"""`springtide.accuracy`: predicted peaks of Prod held against what happened, keyed by node.

Once an hour (`model.accuracy_interval_seconds`) the model agent remembers the peaks that it
predicts for Prod, with the pods of Prod that run, and writes a record when their horizon is over.
A pod that has ended counts 0 from then on; pods that arrived later do not count. Usage of Prod
includes the system's, as its predicted peak does. Peaks of a node that departed are written as of
its last window, without a judgement unless their horizon was nearly over. After a failure a record
may be written again: a repeat has the node and `made_at` of the first.
"""

from typing import Annotated, Final

import msgspec

from pipeline.topics.result_header import Result, check_time

KNOWN_SHARE: Final = 0.9
"""A peak is judged if usage was known for this share of its horizon."""

LONGEST_HORIZON_SECONDS: Final = 1e9
"""A longer one is none that a worker has: settings allow a year."""


class PeakAmounts(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Amounts of Prod; null is unknown.

    cpu: CPU in millicores.
    memory: Memory in bytes.
    """

    cpu: float | None = None
    memory: float | None = None


class Judgement(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A predicted peak of one resource beside the highest usage. All but `peak` are null if usage
    or peak is not known, or nothing was requested.

    peak: The predicted peak with its safety margin, millicores or bytes.
    violated: Whether usage exceeded it, within what Prod requested, by more than 1 millicore or
      1 MiB.
    severity: By what share of the usage it was too low; 0 if it was not.
    savings: The share of the requests that the prediction gave away.
    """

    peak: float | None = None
    violated: bool | None = None
    severity: float | None = None
    savings: float | None = None


class PredictorJudgement(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The judgement of one predictor.

    cpu: Of CPU.
    memory: Of memory.
    """

    cpu: Judgement = Judgement()
    memory: Judgement = Judgement()


class AccuracyRecord(Result, frozen=True, kw_only=True):
    """The peaks that were predicted for Prod of a node at `made_at`, and what happened until the
    end of their horizon.

    made_at: End of the window after which the peaks were predicted, RFC 3339, UTC.
    horizon_seconds: The time for which they should hold.
    pool: The node's pool; empty without a policy for hot nodes, and of a departed node.
    decides: The predictor that decided in the last window.
    requests: Requests of the pods of Prod at `made_at`.
    highest: Highest usage since then of these pods with the system.
    known_share_cpu: Share of the horizon in which CPU usage was known, 0 to 1.
    known_share_memory: The same of memory.
    predictors: Judgements by predictor, of those that ran at `made_at` and still run.
    """

    made_at: str
    horizon_seconds: Annotated[float, msgspec.Meta(gt=0, le=LONGEST_HORIZON_SECONDS)]
    pool: str = ""
    decides: str
    requests: PeakAmounts
    highest: PeakAmounts
    known_share_cpu: float
    known_share_memory: float
    predictors: dict[str, PredictorJudgement]

    def __post_init__(self) -> None:
        Result.__post_init__(self)
        check_time("made_at", self.made_at)

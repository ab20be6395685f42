"""Replay records of `windows` into models, and find those that cannot be applied.

A failed call leaves models half-changed, so the replay starts again from the checkpoints; the
records of the failed call are then applied alone (`failed_windows`).
"""

from collections.abc import Mapping, Sequence
from functools import partial

from pipeline.agents.failed_windows import ReplayAgainError, node_of
from pipeline.agents.model_agent import ModelCursor
from pipeline.kafka.partition_log import LogRecord
from pipeline.logs import get_logger

log = get_logger(__name__)


async def replay(
    model: ModelCursor, records: Sequence[LogRecord], covers: Mapping[str, int]
) -> None:
    """Apply `records` during recovery, without those below `covers` of their node.

    Raises `ReplayAgainError` if they cannot be applied.
    """
    for run in model.failures.runs(records):
        if run[0].offset < covers.get(node_of(run[0]), 0) or not model.failures.concern(run):
            _replay_together(model, run, covers)
        else:
            await model.apply_alone(run[0], partial(model.replay_alone, run[0]))


def _replay_together(
    model: ModelCursor, records: Sequence[LogRecord], covers: Mapping[str, int]
) -> None:
    try:
        model.replay(records, covers)
    except MemoryError:
        raise
    except Exception as error:  # foreign code may raise anything
        failed = range(records[0].offset, records[-1].offset + 1)
        model.failures.ranges.append(failed)
        log.error("windows cannot be applied, replaying them one by one",
                  partition=model.ownership.partition, start=failed.start, end=failed.stop,
                  error=repr(error))  # fmt: skip
        raise ReplayAgainError from error


def encode_replayed(model: ModelCursor, limit: int) -> bool:
    """Encode the reports of up to `limit` replayed nodes; return whether any are left.

    Raises `ReplayAgainError` if that fails for a node.
    """
    try:
        return model.encode_replayed(limit)
    except MemoryError:
        raise
    except Exception as error:  # foreign code may raise anything
        log.error("results cannot be encoded, encoding them one by one", error=repr(error),
                  partition=model.ownership.partition)  # fmt: skip
    for node in model.replayed_nodes[:limit]:
        try:
            model.encode_replayed(1)
        except MemoryError:
            raise
        except Exception as error:
            if node in model.failures.nodes:
                raise
            model.failures.nodes.add(node)
            raise ReplayAgainError from error
    return bool(model.replayed_nodes)

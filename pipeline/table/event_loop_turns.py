"""Interleave the records of a fetch with other work of the event loop, above all with answers.

Applying a record takes about 0.1 ms. A hundred of them at once would delay every request that comes
in meanwhile; one at a time, a millisecond apart, delays hardly any. Records do not wait for ever:
after `TRICKLING_SECONDS` they come eight in a turn, whatever else the loop has to do.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import TypeVar

from pipeline.table import limits

Record = TypeVar("Record")


async def by_turns(records: Sequence[Record], *, trickling: bool) -> AsyncIterator[Record]:
    """Yield the records, some in each turn of the event loop. If they are `trickling` (the fetch
    left none behind) they come one at a time with a pause, as long as there is time for that."""
    time = asyncio.get_running_loop().time
    until = time() + limits.TRICKLING_SECONDS if trickling else 0.0
    for index, record in enumerate(records):
        if time() < until:
            await asyncio.sleep(limits.TRICKLE_PAUSE_SECONDS if index else 0)
        elif index % limits.RECORDS_IN_A_TURN == 0:
            await asyncio.sleep(0)
        yield record

"""Interleave the records of a fetch with other work of the event loop, above all with answers.

Applying a record takes about 0.1 ms. A hundred of them at once would delay every request that comes
in meanwhile; one at a time, a millisecond apart, delays hardly any. Records do not wait for ever:
after `_TRICKLING_SECONDS` they come eight in a turn, whatever else the loop has to do.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Final, TypeVar

# So few that a request, which takes several turns of the event loop, never waits long for them.
RECORDS_IN_A_TURN: Final = 8
_PAUSE_SECONDS: Final = 0.001
_TRICKLING_SECONDS: Final = 0.15
"""Shorter than the time from one fetch to the next, else records would pile up."""

Record = TypeVar("Record")


async def by_turns(records: Sequence[Record], *, trickling: bool) -> AsyncIterator[Record]:
    """Yield the records, some in each turn of the event loop. If they are `trickling` (the fetch
    left none behind) they come one at a time with a pause, as long as there is time for that."""
    time = asyncio.get_running_loop().time
    until = time() + _TRICKLING_SECONDS if trickling else 0.0
    for index, record in enumerate(records):
        if time() < until:
            await asyncio.sleep(_PAUSE_SECONDS if index else 0)
        elif index % RECORDS_IN_A_TURN == 0:
            await asyncio.sleep(0)
        yield record

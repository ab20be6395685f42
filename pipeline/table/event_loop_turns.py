"""Records of one fetch by turns with all else on an event loop, above all with answers.

Owes the rest: that of many questions hardly any waits for records, and none for many of them; and
that records, too, come within a time that does not depend on how much is asked.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Final, TypeVar

# So few that a question, which takes some turns of the event loop, never waits long for them.
RECORDS_IN_A_TURN: Final = 8
_PAUSE_SECONDS: Final = 0.001
_TRICKLING_SECONDS: Final = 0.15
"""Shorter than the time from one fetch to the next: else they would pile up."""

Record = TypeVar("Record")


async def by_turns(records: Sequence[Record], *, trickling: bool) -> AsyncIterator[Record]:
    """These records, some in each turn of the event loop. Those that are `trickling`, behind which
    nothing lies ready, come by themselves and a pause apart, as long as there is time for that."""
    time = asyncio.get_running_loop().time
    until = time() + _TRICKLING_SECONDS if trickling else 0.0
    for at, record in enumerate(records):
        if time() < until:
            await asyncio.sleep(_PAUSE_SECONDS if at else 0)
        elif at % RECORDS_IN_A_TURN == 0:
            await asyncio.sleep(0)
        yield record

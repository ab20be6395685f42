"""Owners of one partition who die, wake up late and overlap, at random, over a broker in memory.

After each taking over, and at the end, the models must be those of one undisturbed pass over the
log up to where they stand. What the owners run is the product's own recovery, model and rounds.
"""

import asyncio
import random
from typing import Any

from tests.agents.fakes import MemoryBroker
from tests.agents.logs import LogWriter
from tests.agents.owners import Owner, content, published, settle, undisturbed

NODES = ("a", "b", "c", "d", "e")


class Simulation:
    """One run. `run` gives what went wrong, None if nothing did."""

    def __init__(self, seed: int, *, zombies: bool, steps: int = 50) -> None:
        self._luck = random.Random(seed)
        self._zombies = zombies
        self._steps = steps
        self._broker = MemoryBroker(latency=lambda: self._luck.choice((0, 0, 1, 8)))
        self._log = LogWriter(self._broker)
        self._reference = undisturbed(self._broker)
        self._owners: list[Owner] = []
        self._loading: list[asyncio.Task[Owner]] = []

    async def run(self) -> str | None:
        for _ in range(self._steps):
            await self._step()
            for task in [task for task in self._loading if task.done()]:
                self._loading.remove(task)
                if problem := self._taken(task.result()):
                    return problem
        for task in self._loading:
            if problem := self._taken(await task):
                return problem
        for owner in self._owners:
            owner.die()
        last = await Owner(self._broker, "last").load()
        return self._difference(last, "at the end") or self._unpublished(last)

    async def _step(self) -> None:
        luck = self._luck
        action = luck.random()
        if action < 0.35:
            self._extend_log()
        elif action < 0.55 and self._owners:
            await luck.choice(self._owners).apply(luck.randrange(1, 6))
        elif action < 0.85 and self._owners:
            await luck.choice(self._owners).step_round()
        elif action < 0.95 and len(self._loading) <= self._zombies:
            self._take_over()
        for _ in range(luck.randrange(4)):
            await asyncio.sleep(0)

    def _extend_log(self) -> None:
        node = self._luck.choice(NODES)
        if self._luck.random() < 0.12:
            self._log.depart(node)
        for _ in range(self._luck.randrange(1, 4)):
            self._log.window(node, skip=self._luck.choice((0, 0, 0, 1, -1, -2)))

    def _take_over(self) -> None:
        kept = None
        if self._owners and self._luck.random() < 0.2:
            # A rebalance that leaves the partition where it is.
            owner = self._owners.pop()
            owner.model.ownership.owned = False
            kept = owner.shard
        elif not self._zombies:
            for owner in self._owners:
                owner.die()
            self._owners.clear()
        owner = Owner(self._broker, f"member-{len(self._broker.records('t.checkpoints'))}")
        self._loading.append(asyncio.create_task(owner.load(kept)))

    def _taken(self, owner: Owner) -> str | None:
        self._owners.append(owner)
        if len(self._owners) > 2:
            self._owners.pop(0).die()
        return self._difference(owner, f"epoch {owner.epoch}")

    def _difference(self, owner: Owner, when: str) -> str | None:
        end = owner.model.next_offset
        have, want = content(owner.model), self._undisturbed(end)
        if have == want:
            return None
        nodes = [n for n in NODES if have.get(n) != want.get(n)]
        return f"{when}: {nodes} differ at offset {end}"

    def _undisturbed(self, end: int) -> dict[str, Any]:
        """The content at `end`; taking over mostly comes later and later in the log."""
        if end < self._reference.next_offset:
            return content(undisturbed(self._broker, end))
        ahead = self._broker.records("t.windows")[self._reference.next_offset : end]
        if ahead:
            self._reference.apply(ahead)
        return content(self._reference)

    def _unpublished(self, last: Owner) -> str | None:
        want = content(last.model)
        for topic, at in (("t.predictions", 2), ("t.node-state", 3)):
            have = published(self._broker, topic)
            if not self._zombies and have != {node: of[at] for node, of in want.items()}:
                return f"{topic} is not what the models say"
            for node, of in want.items():
                if have.get(node) != of[at]:
                    return f"{topic} of {node} is not what the models say"
        return None


def simulate(seed: int, *, zombies: bool) -> str | None:
    """What went wrong in the run of this seed."""

    async def run() -> str | None:
        found = await Simulation(seed, zombies=zombies).run()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await settle()
        return found

    return asyncio.run(run())

"""Owners of one partition that die, resume late and overlap at random, over a broker in memory.

After each takeover, and at the end, the models must equal those of one undisturbed pass over the
log up to their position. Owners run the real recovery, model and rounds.
"""

import asyncio
import random
from typing import Any

from pipeline.agents.model_agent import apply_batches
from tests.agents.fakes import MemoryBroker
from tests.agents.logs import LogWriter
from tests.agents.owners import Owner, content, published, settle, undisturbed

NODES = ("a", "b", "c", "d", "e")


class Simulation:
    """One run with a seed. `run` returns the problem, or None."""

    def __init__(self, seed: int, *, zombies: bool, steps: int = 50) -> None:
        self._rng = random.Random(seed)
        self._zombies = zombies
        self._steps = steps
        self._broker = MemoryBroker(latency=lambda: self._rng.choice((0, 0, 1, 8)))
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
        rng = self._rng
        action = rng.random()
        if action < 0.35:
            self._extend_log()
        elif action < 0.55 and self._owners:
            await rng.choice(self._owners).apply(rng.randrange(1, 6))
        elif action < 0.85 and self._owners:
            await rng.choice(self._owners).step_round()
        elif action < 0.95 and len(self._loading) <= self._zombies:
            self._take_over()
        for _ in range(rng.randrange(4)):
            await asyncio.sleep(0)

    def _extend_log(self) -> None:
        node = self._rng.choice(NODES)
        if self._rng.random() < 0.12:
            self._log.depart(node)
        for _ in range(self._rng.randrange(1, 4)):
            self._log.window(node, skip=self._rng.choice((0, 0, 0, 1, -1, -2)))

    def _take_over(self) -> None:
        previous = None
        if self._owners and self._rng.random() < 0.2:
            # A rebalance after which the worker keeps the partition.
            owner = self._owners.pop()
            owner.model.ownership.owned = False
            previous = owner.shard
        elif not self._zombies:
            for owner in self._owners:
                owner.die()
            self._owners.clear()
        owner = Owner(self._broker, f"member-{len(self._broker.records('t.checkpoints'))}")
        self._loading.append(asyncio.create_task(owner.load(previous)))

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
        """Return the content at `end`; the ends of most takeovers increase."""
        if end < self._reference.next_offset:
            return content(undisturbed(self._broker, end))
        ahead = self._broker.records("t.windows")[self._reference.next_offset : end]
        if ahead:
            apply_batches([(self._reference, ahead)])
        return content(self._reference)

    def _unpublished(self, last: Owner) -> str | None:
        want = content(last.model)
        for topic, field in (("t.predictions", 2), ("t.node-state", 3)):
            have = published(self._broker, topic)
            if not self._zombies and have != {node: values[field] for node, values in want.items()}:
                return f"{topic} differs from the models"
            for node, values in want.items():
                if have.get(node) != values[field]:
                    return f"{topic} of {node} differs from the models"
        return None


def simulate(seed: int, *, zombies: bool) -> str | None:
    """Run the simulation of this seed; return the problem, or None."""

    async def run() -> str | None:
        problem = await Simulation(seed, zombies=zombies).run()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await settle()
        return problem

    return asyncio.run(run())

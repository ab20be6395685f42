"""The program in this directory: a runtime's side of NRI by the library of containerd and CRI-O."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from pipeline.local.build_programs import ensure_own_program
from pipeline.local.process_guard import die_with_parent
from tests.processes import until


class Runtime:
    """The program while it runs, built if it is missing."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    @asynccontextmanager
    async def listening(cls, socket: Path) -> AsyncIterator["Runtime"]:
        program = await asyncio.to_thread(ensure_own_program, Path(__file__).parent, "nri-runtime")
        process = await asyncio.create_subprocess_exec(
            program, socket, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            preexec_fn=die_with_parent,
        )  # fmt: skip
        try:
            await until(socket.exists)
            yield cls(process)
        finally:
            process.kill()
            await process.communicate()

    async def line(self) -> Any:
        """The next line of output: first the synchronization with the plugin that connected."""
        assert self._process.stdout is not None
        async with asyncio.timeout(60):
            return json.loads(await self._process.stdout.readline())

    async def ask(self, **request: Any) -> Any:
        """What the plugins make of a request, which is named `create` or `update`."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        return await self.line()

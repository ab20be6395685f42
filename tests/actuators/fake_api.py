"""An API server that only writes down what it is asked for, for what the real one never shows."""

from typing import Any, NamedTuple

import msgspec

from pipeline.errors import KubernetesError


class Asked(NamedTuple):
    method: str
    path: str
    body: Any


class FakeApi:
    """`answers` says by method what is raised or given; nothing without."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.answers: dict[str, KubernetesError | Any] = {}

    async def request(self, method: str, path: str, *, body: Any = None, **_: Any) -> bytes:
        self.asked.append(Asked(method, path, body))
        answer = self.answers.get(method, {})
        if isinstance(answer, KubernetesError):
            raise answer
        return msgspec.json.encode(answer)

"""Count calls of functions of `os`."""

import os
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest


def count_calls(monkeypatch: pytest.MonkeyPatch, *names: str) -> Counter[str]:
    """Count the calls of these functions from now on, until `monkeypatch` is undone."""
    calls: Counter[str] = Counter()

    def counted(name: str) -> Callable[..., Any]:
        call = getattr(os, name)

        def count(*arguments: Any, **options: Any) -> Any:
            calls[name] += 1
            return call(*arguments, **options)

        return count

    for name in names:
        monkeypatch.setattr(os, name, counted(name))
    return calls

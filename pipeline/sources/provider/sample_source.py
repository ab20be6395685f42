"""The declaration of a sample source, and the protocol of its sessions.

A module of this package with a `SOURCE` is a sample source; other packages name theirs by the entry
point group `springtide.sample_sources`.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol, get_type_hints

import msgspec

from pipeline.clock import Clock
from pipeline.errors import SettingsError
from pipeline.kube.api_client import Api
from pipeline.processors.imported_usage.fetched_usage import FetchedUsage, TimeWindow
from pipeline.settings import ProviderSettings, Settings
from pipeline.settings.describe import description


class SourceSession(Protocol):
    """A session with a system that measures usage of nodes and their pods."""

    async def fetch(self, window: TimeWindow) -> FetchedUsage:
        """Fetch the usage in `window`, which has ended.

        Missing parts are reported in the result. Raises `SampleSourceError` if there is no usage.
        """


class SourceOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of a sample source, a field each with its description; unknown keys are refused."""


@dataclass(frozen=True, slots=True)
class SampleSource:
    """A system that measures usage, as `provider.kind` names it.

    `open` opens a session; the API server is None if none is open yet. `hint` says what to check if
    a window is empty. `options` are the keys of `provider.options`. `queries` prints what the
    source asks its system. `publishes`: the source publishes samples itself, so that there is
    nothing to import. `has_history`: windows of the past can be fetched. `needs_cluster`: the
    source itself is the API server.
    """

    name: str
    text: str
    open: Callable[[Settings, Clock, Api | None], AbstractAsyncContextManager[SourceSession]]
    hint: str
    options: type[SourceOptions] = SourceOptions
    queries: Callable[[ProviderSettings], Iterator[str]] = lambda settings: iter(())
    publishes: bool = False
    has_history: bool = True
    needs_cluster: bool = False

    @property
    def help(self) -> str:
        """The text, and each option with its description."""
        hints = get_type_hints(self.options, include_extras=True)
        return "; ".join([self.text, *(f"{key}: {description(hints[key])}" for key in hints)])

    def read_options(self, settings: ProviderSettings) -> Any:
        """`provider.options` as an object of `options`. Raises `SettingsError`."""
        try:
            return msgspec.convert(settings.options, self.options)
        except msgspec.ValidationError as error:
            raise SettingsError(
                f"provider.options: {error}",
                key="provider.options",
                hint="`springtide provider --help-all` lists the options of each sample source",
            ) from error

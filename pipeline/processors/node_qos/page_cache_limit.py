"""How much page cache a pod may have, on kernels that can limit it (Anolis)."""

from typing import NamedTuple

from pipeline.processors.slo.nodeslo import MemoryQos
from pipeline.topics.resource_amounts import whole_bytes


class PageCacheLimit(NamedTuple):
    """Values of `memory.pagecache_limit.*`; None is not written."""

    enable: int | None = None
    size_bytes: int | None = None
    sync: int | None = None


def page_cache_limit(qos: MemoryQos, limit_bytes: int | None) -> PageCacheLimit:
    """The limit by a policy for a pod with this memory limit, as in Koordinator.

    An absolute size beats a percentage of the memory limit, and neither exceeds that limit. A size
    of 0 switches the page cache limit off. `pageCacheEnable` overrides only the switch.
    """
    size = _size_bytes(qos, limit_bytes)
    limit = PageCacheLimit()
    if size == 0:
        limit = PageCacheLimit(enable=0, size_bytes=0)
    elif size is not None:
        limit = PageCacheLimit(1, size, int(qos.page_cache_reclaim_sync or False))
    if qos.page_cache_enable is not None:
        limit = limit._replace(enable=int(qos.page_cache_enable))
    return limit


def _size_bytes(qos: MemoryQos, limit_bytes: int | None) -> int | None:
    if qos.page_cache_limit_size is not None:
        size = whole_bytes(qos.page_cache_limit_size)
        return size if limit_bytes is None else min(size, limit_bytes)
    if qos.page_cache_limit_percent is not None and limit_bytes is not None:
        return limit_bytes * qos.page_cache_limit_percent // 100
    return None

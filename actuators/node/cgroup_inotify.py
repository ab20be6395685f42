"""Notice cgroups of pods and containers when they are made or removed, by inotify.

The watches only save time: a round lists directories that are not watched, and from time to time
all. Where the kernel gives no watches, new pods are noticed by the next round.
"""

import asyncio
import ctypes
import errno
import os
from collections.abc import Iterator
from struct import Struct
from typing import Final

from actuators.node import node_metrics
from pipeline.logs import get_logger
from pipeline.processors.node_qos.node_state import NodeState

MOST_WATCHES: Final = 4096
"""Of a node with the most pods that Kubernetes supports there are a few hundred."""
_BUFFER_BYTES: Final = 1 << 16
_CREATE: Final = 0x100  # IN_CREATE
_DELETE: Final = 0x200  # IN_DELETE
_OVERFLOW: Final = 0x4000  # IN_Q_OVERFLOW
_IGNORED: Final = 0x8000  # IN_IGNORED
_ONLY_DIRECTORIES: Final = 0x0100_0000  # IN_ONLYDIR
_IS_DIRECTORY: Final = 0x4000_0000  # IN_ISDIR
_MASK: Final = _CREATE | _DELETE | _ONLY_DIRECTORIES
_EVENT: Final = Struct("=iIII")
_GONE: Final = (errno.ENOENT, errno.ENOTDIR)

log = get_logger(__name__)
_libc: Final = ctypes.CDLL(None, use_errno=True)


class CgroupInotify:
    """Sets `news` when a cgroup is made in a directory that is watched.

    `root` is the directory of the hierarchy; paths are relative to it. Must be made within a
    running event loop.
    """

    def __init__(self, root: str, news: asyncio.Event) -> None:
        self._root, self._news = root, news
        self._watches: dict[str, int] = {}
        self._paths: dict[int, str] = {}
        self._parents: frozenset[str] = frozenset()
        self._changed: set[str] = set()
        self._has_warned = False
        self._descriptor = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._descriptor < 0:
            self._warn(os.strerror(ctypes.get_errno()), "raise fs.inotify.max_user_instances")
        else:
            asyncio.get_running_loop().add_reader(self._descriptor, self._receive)

    def follow(self, state: NodeState) -> None:
        """Watch the directories that pods are made in and those of all pods, and no others.

        A pod whose directory was not watched sets `news`: a container may have come before the
        watch.
        """
        if self._descriptor < 0:
            return
        self._parents = frozenset(
            (state.kubepods_path, state.burstable_path, state.best_effort_path)
        )
        wanted = self._parents.union(pod.path for pod in state.pods)
        for path in self._watches.keys() - wanted:
            self._remove(path)
        for path in wanted - self._watches.keys():
            self._add(path)
            if path in self._watches:
                self._news.set()
        node_metrics.WATCHED.set(len(self._watches))

    def changed(self, path: str) -> bool | None:
        """Whether a directory was made or removed in the one at `path` since the last call; None if
        it is not watched."""
        if path not in self._watches:
            return None
        is_changed = path in self._changed
        self._changed.discard(path)
        return is_changed

    def close(self) -> None:
        """End all watches."""
        if self._descriptor >= 0:
            asyncio.get_running_loop().remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1

    def _receive(self) -> None:
        try:
            data = os.read(self._descriptor, _BUFFER_BYTES)
        except BlockingIOError:
            return
        for watch, mask, name in _events(data):
            if mask & _OVERFLOW:
                # A watch may be of a removed directory now. The next round watches and lists all.
                self._news.set()
                for path in list(self._watches):
                    self._remove(path)
            elif (parent := self._paths.get(watch)) is None:
                continue
            elif mask & _IGNORED:  # the directory was removed
                self._forget(parent)
            elif mask & _IS_DIRECTORY:
                self._changed.add(parent)
                if mask & _CREATE:
                    self._news.set()
                    if parent in self._parents:
                        self._add(f"{parent}/{name}")

    def _add(self, path: str) -> None:
        if len(self._watches) >= MOST_WATCHES:
            self._warn(f"{MOST_WATCHES} cgroups are watched", "")
            return
        file = os.fsencode(f"{self._root}/{path}")
        watch = _libc.inotify_add_watch(self._descriptor, file, _MASK)
        if watch < 0:
            number = ctypes.get_errno()
            if number not in _GONE:
                self._warn(f"{path}: {os.strerror(number)}", "raise fs.inotify.max_user_watches")
            return
        if self._watches.get(path, watch) != watch:  # another directory has its name
            self._remove(path)
        if path not in self._watches:
            self._changed.add(path)  # before the watch
        self._watches[path], self._paths[watch] = watch, path

    def _remove(self, path: str) -> None:
        # It fails if the directory was removed.
        _libc.inotify_rm_watch(self._descriptor, self._watches[path])
        self._forget(path)

    def _forget(self, path: str) -> None:
        self._paths.pop(self._watches.pop(path), None)
        self._changed.discard(path)

    def _warn(self, why: str, hint: str) -> None:
        """Say once that not everything is watched."""
        if not self._has_warned:
            self._has_warned = True
            log.warning("new pods are noticed by the next round, not at once", why=why, hint=hint)


def _events(data: bytes) -> Iterator[tuple[int, int, str]]:
    """The watch, the mask and the name of each event."""
    at = 0
    while at < len(data):
        watch, mask, _, length = _EVENT.unpack_from(data, at)
        at += _EVENT.size + length
        yield watch, mask, os.fsdecode(data[at - length : at].rstrip(b"\0"))

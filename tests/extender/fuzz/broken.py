"""Invalid HTTP requests as bytes, and the statuses of their answers."""

import gzip
import re

import msgspec
from hypothesis import strategies as st

from tests.extender.fuzz.documented import junk, texts

PATHS = ("/filter", "/prioritize", "/preempt", "/v1/explain", "/v1/nodes/a", "/watcher", "/nowhere")

paths = st.sampled_from(PATHS)
question = junk.map(lambda pod: msgspec.json.encode({"Pod": pod, "NodeNames": ["a"]}))
lengths = st.sampled_from(
    [b"0", b"1", b"5", b"99999", b"-1", b"+3", b"1e3", b"9" * 20, b"", b"3, 3", b"0x5"]
)  # fmt: skip


def _post(path: str, headers: bytes, body: bytes) -> bytes:
    return b"POST " + path.encode() + b" HTTP/1.1\r\nHost: x\r\n" + headers + b"\r\n" + body


def _with_length(path: str, length: bytes, body: bytes) -> bytes:
    return _post(path, b"Content-Length: " + length + b"\r\n", body)


def _truncated(path: str, body: bytes, missing: int) -> bytes:
    return _with_length(path, str(len(body) + missing).encode(), body)


def _encoded(path: str, encoding: bytes, body: bytes) -> bytes:
    return _with_length(path, str(len(body)).encode() + b"\r\nContent-Encoding: " + encoding, body)


def _header(path: str, name: bytes, value: bytes) -> bytes:
    return _post(path, b"Content-Length: 2\r\n" + name + b": " + value + b"\r\n", b"{}")


def _chunked(path: str, size: bytes, body: bytes) -> bytes:
    return _post(path, b"Transfer-Encoding: chunked\r\n", size + b"\r\n" + body + b"\r\n0\r\n\r\n")


def _nested(depth: int, opening: bytes, key: bytes) -> bytes:
    return b'{"Pod": {}, "NodeNames": ["a"], "' + key + b'": ' + opening * depth


bodies = question | st.binary(max_size=60)
packed = bodies.map(gzip.compress)
broken = st.one_of(
    st.builds(_with_length, paths, lengths, bodies),
    st.builds(_truncated, paths, bodies, st.integers(1, 2000)),
    st.builds(
        _encoded, paths, st.sampled_from([b"gzip", b"deflate", b"br", b"zstd", b"identity", b"x"]),
        bodies | packed | packed.map(lambda data: data[:-5]),
    ),
    st.builds(
        _header, paths,
        st.sampled_from([b"X", b"Host", b"Expect", b"Content-Type", b"Content-Length", b"Cookie",
                         b"Upgrade", b"Connection", b"Range", b"If-None-Match", b"\xff", b"a b"]),
        st.binary(max_size=30) | st.integers(1, 100_000).map(lambda size: b"v" * size),
    ),
    st.builds(
        _chunked, paths, st.sampled_from([b"2", b"1", b"zz", b"-1", b"ffffffffffffffff", b"2;x=y"]),
        bodies,
    ),
    st.builds(
        lambda method, path, version: method + b" " + path + b" HTTP/" + version + b"\r\n\r\n",
        st.sampled_from([b"GET", b"get", b"BREW", b"", b"\x00", b"PRI", b"CONNECT", b"TRACE"]),
        st.sampled_from([b"/readyz", b"*", b"", b"//", b"/%", b"/\x00", b"http://x/", b"x:99999",
                         b"/v1/nodes/" + b"x" * 9000, b"/watcher?host=" + b"%41" * 5000]),
        st.sampled_from([b"1.1", b"1.0", b"0.9", b"2.0", b"9", b""]),
    ),
    st.binary(max_size=200),
)  # fmt: skip

nested = st.builds(
    _nested, st.sampled_from([10, 500, 1000, 5000, 200_000]),
    st.sampled_from([b"[", b'{"a":', b'{"items": [']),
    st.sampled_from([b"x", b"pod", b"Nodes", b"NodeNameToVictims"]),
)  # fmt: skip
nulls = st.builds(
    lambda name, odd: msgspec.json.encode({"Pod": {"metadata": {name: odd}}, "NodeNames": [odd]}),
    st.sampled_from(["name", "uid", "namespace", "labels", "annotations"]),
    texts.map(lambda text: f"a\x00{text}"),
)


def statuses(received: bytes) -> list[int]:
    """The status of each answer; empty if the connection was closed without an answer."""
    return [int(text) for text in re.findall(rb"HTTP/1\.[01] (\d{3}) ", received)]

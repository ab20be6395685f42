"""Kernel files are parsed again only if they have changed."""

from pathlib import Path

from node_exporter.kernel.kernel_file import KernelFile


def test_an_unchanged_file_is_parsed_once(tmp_path: Path) -> None:
    parsed: list[bytes] = []

    def parse(data: bytes, path: str) -> int:
        parsed.append(data)
        return int(data)

    path = tmp_path / "cpuacct.usage"
    path.write_text("1")
    file = KernelFile(str(path))
    values = []
    for text in ("1", "1", "2", "1"):
        path.write_text(text)
        values.append(file.parsed(parse))
    assert values == [1, 1, 2, 1]
    assert parsed == [b"1", b"2", b"1"]
    assert file.parsed(lambda data, path: data) == b"1"
    file.close()

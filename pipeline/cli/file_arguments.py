"""Read files that users name as arguments: `-` is standard input."""

from pathlib import Path

import click

from pipeline.input_files import LARGEST_FILE_BYTES, read_file


def read_argument(file: Path, most_bytes: int = LARGEST_FILE_BYTES) -> bytes:
    """Return the content of the file, of standard input for `-`. Raises `UsageError` if it is
    unreadable or larger than this."""
    stream = click.get_binary_stream("stdin") if str(file) == "-" else None
    name, hint = Path(argument_name(file)), "give a readable file, or - for standard input"
    return read_file(name, most_bytes, stream=stream, hint=hint)


def argument_name(file: Path) -> str:
    """The file as errors name it."""
    return "standard input" if str(file) == "-" else str(file)

"""Bearer tokens: the files that contain them, and the hosts to which they may go without TLS."""

import ipaddress
from pathlib import Path

from pipeline.input_files import read_file


def parse_tokens(data: bytes) -> list[bytes]:
    """The tokens of a file, one a line; empty lines are skipped.

    Raises ValueError for a file without a token, and for a line that is no token: it names the
    number of the line, not the line, which may be a secret.

    >>> parse_tokens(b"first\\n\\n second\\r\\n")
    [b'first', b'second']
    """
    tokens = []
    for number, line in enumerate(data.splitlines(), start=1):
        token = line.strip()
        if not token.isascii():
            raise ValueError(f"the token of line {number} has a character that is not ASCII")
        if len(token.split()) > 1 or token.startswith(b"#"):
            raise ValueError(
                f"line {number} is no token: it contains a space or begins with #; each line is "
                "one token, without a comment"
            )
        if token:
            tokens.append(token)
    if not tokens:
        raise ValueError("there is no token")
    return tokens


def authorization(token_file: Path | None) -> dict[str, str]:
    """The header with the first token of the file, which is read each time; none without a file.
    Raises `UsageError` for an unreadable file, and ValueError as `parse_tokens` does."""
    if token_file is None:
        return {}
    return {"Authorization": f"Bearer {parse_tokens(read_file(token_file))[0].decode()}"}


def is_loopback(host: str) -> bool:
    """Whether a host name or address is of this machine alone."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False

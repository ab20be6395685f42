"""Text from records and files that is safe to show: it cannot move the cursor or fake a line."""


def printable(text: str) -> str:
    """Return the text with every invisible character, such as one that reverses the direction of
    writing, as an escape sequence.

    >>> printable("pod \\x1b[2J é")
    'pod \\\\x1b[2J é'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)

"""The command line: one module per command, imported when the command runs."""

INTERRUPTED = 130
"""The exit code of a command that Ctrl-C interrupted."""

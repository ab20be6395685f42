"""The command line: one module a command, loaded when it is asked for."""

INTERRUPTED = 130
"""The exit code of a command that Ctrl-C interrupted."""

"""`--help` fits on a screen; `--help-all` and the manual page have every flag and table."""

from math import ceil

import click
import pytest
from click.testing import CliRunner

from pipeline.cli.help_sections import SecondaryOption
from pipeline.cli.main import cli
from pipeline.cli.man_page import man_page
from tests.docs.flag_tables import commands

COLUMNS, LINES = 80, 50
"""Of a terminal on any laptop."""

MORE = ": --help-all\n"
WITH_MORE = {
    words: flags
    for words, command in commands()
    if (flags := [flag for each in command.params
                  if isinstance(each, SecondaryOption) and not each.hidden for flag in each.opts])
}  # fmt: skip


def help_of(words: str, flag: str) -> str:
    result = CliRunner().invoke(cli, [*words.split(), flag], terminal_width=COLUMNS)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize("words", [words for words, _ in commands()])
def test_help_fits_on_a_screen(words: str) -> None:
    text = help_of(words, "--help")
    # The terminal wraps examples.
    assert sum(max(1, ceil(len(line) / COLUMNS)) for line in text.splitlines()) <= LINES, text


@pytest.mark.parametrize("words", WITH_MORE)
def test_help_has_one_line_in_place_of_other_flags(words: str) -> None:
    short, whole = help_of(words, "--help"), help_of(words, "--help-all")
    flags = WITH_MORE[words]
    assert [flag for flag in flags if f"\n  {flag} " in short] == []
    assert [flag for flag in flags if f"\n  {flag} " not in whole] == []
    assert (short.count(MORE), whole.count(MORE)) == (1, 0)


def test_tables_are_named_where_they_are_left_out() -> None:
    short, whole = help_of("top", "--help"), help_of("top", "--help-all")
    assert "\nAll flags, columns, values of FLAGS: --help-all\n" in short
    assert ("\nColumns:\n" in short, "\nColumns:\n" in whole) == (False, True)


def test_flags_for_kafka_and_tls_and_most_settings_are_left_out() -> None:
    assert {"--bootstrap-servers", "--sasl-username", "--ssl-ca-file", "--stale-after-seconds"} <= {
        *WITH_MORE["top"]
    }
    assert {"--tls-cert-file", "--tls-key-file", "--port"} <= {*WITH_MORE["extender"]}
    assert {"--mode", "--scheduler-config-file"} & {*WITH_MORE["extender"]} == set()


@pytest.mark.parametrize("words", ["completion", "kafka stop", "model predictors"])
def test_a_command_without_other_flags_shows_the_same_help(words: str) -> None:
    assert MORE not in help_of(words, "--help")
    assert help_of(words, "--help-all") == help_of(words, "--help")


def test_manual_page_has_every_flag_of_every_command() -> None:
    page = man_page().replace("\\-", "-")
    missing = [
        (words, flag)
        for words, command in commands()
        for each in command.params
        if isinstance(each, click.Option) and not each.hidden
        for flag in each.opts
        if flag not in page.partition(f".SS springtide {words}\n")[2].partition(".SS ")[0]
    ]
    assert missing == []

"""`--help` leaves out flags for Kafka and TLS, `--help-all` and the manual page have them."""

import click
import pytest
from click.testing import CliRunner

from pipeline.cli.help_sections import ConnectionOption
from pipeline.cli.main import cli
from pipeline.cli.man_page import man_page
from tests.docs.flag_tables import commands

LINE = "\nKafka and TLS: --help-all\n"
WITH_CONNECTION = {
    words: [flag for each in command.params if isinstance(each, ConnectionOption)
            for flag in each.opts]
    for words, command in commands()
    if any(isinstance(each, ConnectionOption) for each in command.params)
}  # fmt: skip


def help_of(words: str, flag: str) -> str:
    result = CliRunner().invoke(cli, [*words.split(), flag])
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize("words", WITH_CONNECTION)
def test_help_has_one_line_in_place_of_flags_for_kafka_and_tls(words: str) -> None:
    short, whole = help_of(words, "--help"), help_of(words, "--help-all")
    flags = WITH_CONNECTION[words]
    assert [flag for flag in flags if f"  {flag} " in short] == []
    assert [flag for flag in flags if f"  {flag} " not in whole] == []
    assert (short.count(LINE), whole.count(LINE)) == (1, 0)


def test_every_flag_of_the_settings_for_kafka_is_left_out() -> None:
    assert {"--bootstrap-servers", "--topic-prefix", "--sasl-username", "--ssl-ca-file"} <= {
        *WITH_CONNECTION["top"]
    }
    assert {"--tls-cert-file", "--tls-key-file", "--tls-client-ca-file"} <= {
        *WITH_CONNECTION["extender"]
    }
    assert "--stale-after-seconds" not in WITH_CONNECTION["top"]


@pytest.mark.parametrize("words", ["completion", "kafka start", "model predictors"])
def test_a_command_without_them_has_neither_the_flag_nor_the_line(words: str) -> None:
    assert LINE not in help_of(words, "--help")
    assert CliRunner().invoke(cli, [*words.split(), "--help-all"]).exit_code == 2


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

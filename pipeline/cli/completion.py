"""`springtide completion`: print what makes a shell complete commands and flags."""

import click
from click.shell_completion import get_completion_class

from pipeline.cli.help_sections import Command

_SHELLS = ("bash", "zsh", "fish")
_VARIABLE = "_SPRINGTIDE_COMPLETE"


@click.command(cls=Command, exit_codes={0: "printed"})
@click.argument("shell", type=click.Choice(_SHELLS))
@click.pass_context
def command(context: click.Context, shell: str) -> None:
    """Print a script that makes SHELL complete commands, flags and their values.

    \b
    Examples:
      source <(springtide completion bash)
      springtide completion zsh > "${fpath[1]}/_springtide"
      springtide completion fish > ~/.config/fish/completions/springtide.fish
    """
    completion = get_completion_class(shell)
    assert completion is not None
    click.echo(completion(context.find_root().command, {}, "springtide", _VARIABLE).source())

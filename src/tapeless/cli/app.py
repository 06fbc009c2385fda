"""All commands in one place."""

from tapeless.cli.commands import COMMANDS, make_app

app = make_app(*COMMANDS)

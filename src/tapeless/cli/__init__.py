"""The command line: one file per command."""

from __future__ import annotations

import gc
import sys


def main() -> None:
    from tapeless.cli import output

    output.install()
    try:
        status = _status()
    except KeyboardInterrupt:
        output.say("stopped.")
        status = 130
    sys.exit(output.closing_status() or status)


def _status() -> int:
    from tapeless.cli.output import OutputError, say
    from tapeless.errors import TapelessError

    try:
        from tapeless.cli.commands import COMMANDS, completing, make_app

        # A command alone is loaded alone; help, completion and a slip of the keyboard need to know all of them.
        named = sys.argv[1:2] if sys.argv[1:2] and sys.argv[1] in COMMANDS and not completing() else COMMANDS
        app = make_app(*named)
    except ModuleNotFoundError as missing:
        say(f"error: the commands need {missing.name}: pip install {missing.name}.")
        return 2
    try:
        gc.freeze()  # all that was imported stays: what a command makes is looked through for garbage without it
        status = app(standalone_mode=False)
        return status if isinstance(status, int) else 0
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except TapelessError as error:
        say(f"error: {error}")
        return 2
    except OutputError:
        return 1
    except Exception as error:
        if not hasattr(error, "format_message"):  # of what Typer raises, which has no public name
            raise
        from tapeless.cli.mistakes import sentence

        say(sentence(error))
        return 2

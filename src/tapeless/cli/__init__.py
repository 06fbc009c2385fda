"""The command line: one file per command."""

from __future__ import annotations

import gc
import signal
import sys
from typing import Any, NoReturn


def main() -> None:
    from tapeless.cli import output

    output.install()
    signal.signal(signal.SIGTERM, _terminated)
    try:
        status = _status()
    except KeyboardInterrupt:  # while it was still loading
        output.say("stopped.")
        status = 130
    sys.exit(output.closing_status() or status)


def _terminated(number: int, frame: Any) -> NoReturn:
    """What a command began is cleaned up on the way out; a training has a handler of its own, which saves."""
    from tapeless.cli.output import say

    say("stopped by SIGTERM.")
    raise SystemExit(143)


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
    except KeyboardInterrupt:
        say("stopped.")
        return 130
    except OutputError:
        return 1
    except Exception as error:
        if not hasattr(error, "format_message"):  # of what Typer raises, which has no public name
            raise
        from tapeless.cli.mistakes import sentence

        say(sentence(error))
        return 2

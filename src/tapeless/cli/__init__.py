"""The command line: one file per command."""

from __future__ import annotations

import sys


def main() -> None:
    from tapeless.errors import TapelessError

    try:
        from tapeless.cli.app import app
    except ModuleNotFoundError as missing:
        print(f"error: the commands need {missing.name}: pip install {missing.name}.", file=sys.stderr)
        sys.exit(2)
    try:
        app()
    except TapelessError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("stopped.", file=sys.stderr)
        sys.exit(130)

"""The command `octavo`: the same program as the one that Cargo builds."""

from __future__ import annotations

import signal
import sys

from ._octavo import run_command


def main() -> int:
    """Runs the command line in this process."""
    # Python's handler would wait for the interpreter, which waits for the command
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return run_command(["octavo", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())

"""Start the program: answer `volery --help` at once, hand everything else to the parser, and report failures.

Every command ends with exit code 0 (done), 1 (trouble at run time), 2 (usage) or 130 (stopped by Ctrl-C), and reports
trouble in one paragraph that names what is concerned and the next step. Nothing here decides anything.
"""

from __future__ import annotations

from node.runtime.startup import STOPPED_EXIT_CODE, loaded, remember

remember()

# ruff: noqa: E402  (what follows takes its time)
import sys
from typing import NoReturn

from node.runtime.errors import NodeError, UsageError, of_file, unwritable_output

HELP: tuple[list[str], ...] = ([], ["-h"], ["--help"])
"""Arguments that ask for the program's own help."""


def main() -> None:
    """Entry point of the console script."""
    if sys.argv[1:] in HELP and sys.stdout is not None:
        _help()
    from node.cli.application import app, load
    from node.runtime.stdout import keep_outlet, tame_tracebacks

    try:
        load(sys.argv[1:])
        loaded()
        keep_outlet()
        tame_tracebacks()
        app(standalone_mode=True, prog_name="volery")
    except KeyboardInterrupt:  # before typer listens, or when it listens no more
        raise SystemExit(STOPPED_EXIT_CODE) from None
    except NodeError as error:
        _fail(error)
    except ImportError as error:
        if (said := _of_missing_library(error)) is None:
            raise
        _fail(said)
    except OSError as error:
        # What a user named, or what was only to be looked at: a state directory, a ledger, a key.
        if (said := of_file(error)) is None:
            raise
        _fail(said)


def _help() -> NoReturn:
    """Print the program's help, which is a usage error where it was not asked for."""
    from node.cli.help.root import root_help

    loaded()
    try:
        sys.stdout.write(root_help())
        sys.stdout.flush()
    except BrokenPipeError:
        sys.stdout = None  # or Python complains at its end
        raise SystemExit(1) from None
    except OSError as error:
        sys.stdout = None
        _fail(unwritable_output(error))
    raise SystemExit(0 if sys.argv[1:] else UsageError.exit_code)


def _of_missing_library(error: ImportError) -> NodeError | None:
    from node.installation.extras import of_missing_library

    return of_missing_library(error, f"`volery {sys.argv[1]}`" if sys.argv[1:] else "volery")


def _fail(error: NodeError) -> NoReturn:
    from node.runtime.stdout import complain

    complain(f"volery: {error.label}: {error}")
    raise SystemExit(error.exit_code) from None

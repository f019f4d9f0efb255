"""Words of a command line that are text: names, reasons, ids.

What always holds: what is looked up, written down or sent is Unicode. A shell hands on any bytes, of which Python makes
code points that have no encoding; the name of a file may have them, a text may not.
"""

from __future__ import annotations

import typer

from node.runtime.errors import UsageError


def whole_text(param: typer.CallbackParam, value: str) -> str:
    """The text as it was given, as a callback of an option or an argument. Raises UsageError where it is not UTF-8."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{_named(param)} is not UTF-8: {value!r}. Type it again, or copy it from a report.") from None
    return value


def _named(param: typer.CallbackParam) -> str:
    """As the command line has it: --reason, PEER."""
    return param.opts[0] if param.param_type_name == "option" else (param.name or "").upper()

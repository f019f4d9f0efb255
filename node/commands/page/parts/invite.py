"""Make the part of a page with the invite: the lines to send to a volunteer, and a picture of them for a telephone.

Pure.
"""

from __future__ import annotations

import io
import re

import segno

from node.reports.html.charts.markup import Fragment, tag
from node.reports.html.components import section

INSTALL = "uv tool install volery"
"""The line that installs the program. OWNER: nothing is published yet."""


def recipe(invite: str) -> str:
    """Return what to send to a volunteer."""
    return f"{INSTALL}\nvolery join {invite}"


def part(invite: str) -> Fragment | None:
    """Return the section; None if there is no invite."""
    if not invite:
        return None
    lines = tag("pre", recipe(invite), id="recipe", tabindex=0)
    button = tag("button", "Copy", type="button", data_copy="recipe", class_="needs-script")
    code = tag("details", tag("summary", "As a QR code"), qr(invite))
    said = "Send these lines to volunteers. The first one installs the program, the second one joins this swarm."
    return section("invite", "Invite", tag("p", said), lines, button, code)


def qr(text: str) -> Fragment:
    """Return a QR code as a drawing."""
    out = io.BytesIO()
    segno.make(text, error="m", micro=False).save(
        out, kind="svg", xmldecl=False, svgns=False, nl=False, border=2, svgclass="qr", lineclass=None, omitsize=True
    )
    drawing = re.sub(r"<svg", '<svg role="img" aria-label="The invite as a QR code"', out.getvalue().decode(), count=1)
    return Fragment(drawing)

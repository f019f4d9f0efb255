"""One page that tells a run, or a volunteer's own work, to people: a file that opens from disk and asks nobody.

A report with its history goes in, text comes out; all of it is pure but for the two files beside these modules, the
style and the script, which are read once, and for writing the page. What always holds: text of strangers is text
(`markup`), nothing but our own style and script can take effect (`page`), all can be read without the script, and every
plot is also a table (`svg`).
"""

from node.reports.html.page import as_html, write_html

__all__ = ["as_html", "write_html"]

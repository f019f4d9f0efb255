"""One page that tells a run, or a volunteer's own work, to people: a file that opens from disk and asks nobody.

Invariants: text of strangers is text (`charts.markup`). Nothing but our own style and script can take effect (`page`).
Everything can be read without the script, and each plot is also a table (`charts.svg`). All is pure but for reading the
style and the script once, and for writing the page.

- `charts`: curves as SVG
- `components`: pieces that several sections use
- `overview`: the whole run
- `own_page`: the page of a volunteer
- `page`: the whole page, with its style and script
- `peer_page`: one peer
- `peer_table`: the table of peers
- `sections`: accounts, audits and bans
"""

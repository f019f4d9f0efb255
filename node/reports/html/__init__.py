"""One page that tells a run, or a volunteer's own work, to people: a file that opens from disk and asks nobody.

Invariants: text of strangers is text (`charts.markup`). Nothing but our own style and script can take effect (`page`).
Everything can be read without the script, and each plot is also a table (`charts.svg`). All is pure but for reading the
style and the script once, and for writing the page.

- `accounts_and_bans`: tables of accounts, audits and bans
- `charts`: curves as SVG
- `components`: pieces that several sections use
- `document`: the document around it, with its style and script
- `own_page`: the page of a volunteer
- `peer_page`: one peer
- `peer_table`: the table of peers
- `run_page`: what the page of a run shows
"""

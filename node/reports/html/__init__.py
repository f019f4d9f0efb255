"""Make one page about a run, or a volunteer's own work: a file that opens from disk and loads nothing else.

Everything is pure except reading the style and the script once, and writing the page once (`document`) or again and
again (`kept_page`).

Invariants:

- Text of strangers is shown as text (`charts.markup`).
- Only our own style and script can take effect (`document`).
- Everything can be read without the script, and each plot is also a table (`charts.svg`).

- `accounts_and_bans`: tables of accounts, audits and bans
- `charts`: curves as SVG
- `components`: pieces that several sections use
- `document`: the document around it, with its style and script
- `kept_page`: writes the page again when the run has changed
- `own_page`: the page of a volunteer
- `peer_page`: one peer
- `peer_table`: the table of peers
- `run_page`: the overview of a run
"""

"""Show a report in a terminal, in columns that fit.

- `columns`: the name of each value and how it is written
- `cost_table`: accounts
- `peer_columns`: the columns of the table of peers
- `report_text`: the whole report
- `reputation_text`: reputations in words
- `tables`: write tables
"""

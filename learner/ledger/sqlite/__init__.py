"""Keep the ledger's file. A file that is damaged, newer, or of another program is refused and left alone.

- `column_values`: values that SQLite does not check: JSON, names of versions, signed bytes
- `database`: one SQLite database of one swarm, in a format that this program knows
- `files`: opens a SQLite file, and says what is wrong with one that cannot be read
- `migration`: converts a ledger of an older format into this program's format
- `row_sums`: a sum over all rows of each table, so that a start finds a changed byte
- `schema`: the tables
"""

"""The file that is the ledger. A file that is damaged, newer or another program's is refused with a sentence and left
alone.

- `column_values`: values that SQLite does not look into: JSON, names of versions, what was signed
- `database`: one SQLite database of one swarm, in a format that this program knows
- `files`: opens a SQLite file, and says what is wrong with one that cannot be read
- `migration`: makes a ledger of an older format into one of this program's
- `row_sums`: a sum over all rows of each table, so that a changed byte is found at a start
- `schema`: the tables
"""

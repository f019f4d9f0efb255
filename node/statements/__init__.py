"""Statements: receipts, credit notes and proofs as one file that anybody can check who knows the operator's key.

The file's form is in `form`, the rules by which it is judged in `check`; both are pure. What a state directory has to
say is read in `books`; `program` is what the commands do, `text` what they print.
"""

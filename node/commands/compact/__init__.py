"""`volery compact`: make a ledger smaller without losing anything.

- `command`: packs receipts, returns free space to the disk, and reports the result
"""

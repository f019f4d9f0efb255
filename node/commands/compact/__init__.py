"""`volery compact`: a ledger in fewer bytes, of which nothing is lost.

- `command`: packs receipts, gives the disk back what is free, and says what came of it
"""

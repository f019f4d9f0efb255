"""What the benchmarks of patches share.

- `store`: two versions as trained, and how long a node takes from a patch's last chunk to the files of the second
"""

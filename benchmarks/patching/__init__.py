"""Parts of benchmarks that measure patches.

- `store`: two versions as if trained, and the time that a node takes from a patch's last chunk to the second's files
"""

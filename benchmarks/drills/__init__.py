"""Parts of the benchmark "drill"."""

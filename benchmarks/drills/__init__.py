"""What the benchmark "drill" is made of."""

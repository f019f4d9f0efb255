"""Draw pictures as PNG.

- `png`: a plot, drawn by matplotlib
- `run_plot`: the run in one picture
"""

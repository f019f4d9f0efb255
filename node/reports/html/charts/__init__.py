"""Plots as SVG that follow the page's theme and can be read without seeing them. No library does this without script
of its own.

- `data_table`: a plot as a table
- `markup`: HTML and SVG, escaped
- `svg`: a plot, drawn
"""

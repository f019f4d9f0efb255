"""Draw plots as SVG that follow the page's theme and can be read without seeing them. Libraries that do this need a
script of their own.

- `data_table`: a plot as a table
- `markup`: HTML and SVG, escaped
- `svg`: a plot, drawn
"""

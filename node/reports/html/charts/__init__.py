"""Curves as SVG that follow the page's theme and can be read without seeing them. No library does this without script
of its own.

- `cost_curve`: costs
- `data_table`: a curve as a table
- `learning_curve`: what was learned
- `markup`: HTML and SVG, escaped
- `plot`: a plot as a value
- `run_curves`: the curves of a run
- `scale`: axes and ticks
- `series`: points of a curve
- `svg`: a plot, drawn
"""

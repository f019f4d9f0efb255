"""Make the plots of a run as values. `node.reports.html.charts` draws them as SVG, `node.reports.plots` as PNG.

- `cost_curve`: costs
- `learning_curve`: what was learned
- `plot`: a plot as a value, and what several plots share
- `run_curves`: the curves of a run
- `scale`: axes and ticks
"""

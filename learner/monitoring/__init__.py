"""Tell an operator what needs attention during a run: alarms and scores from the numbers of steps and leases.

- `alarms`: alarms raised and cleared
- `eval_scores`: mean rewards and pass@k on held-out problems
- `fruitless_leases`: leases that are granted again and again and bring no record
- `rules`: what each alarm measures, and what is usual
- `thresholds`: the alarms, and every threshold with its reason
"""

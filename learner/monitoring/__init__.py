"""What an operator should hear of while a run goes on. Figures in, alarms and scores out.

- `alarms`: alarms raised and cleared
- `eval_scores`: mean rewards and pass@k on held-out prompts
- `fruitless_leases`: leases that are granted again and again and bear no record
- `rules`: what each alarm measures, and what is usual
- `thresholds`: which alarms there are, and every threshold with its reason
"""

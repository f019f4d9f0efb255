"""What a learner measures, declared in one file (`declared`), and where it goes."""

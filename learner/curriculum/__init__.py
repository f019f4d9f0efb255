"""Which problem is asked next: mixtures of tasks, passes over finite ones, levels of generated ones. Pure cores."""

"""What a swarm needs after a day: whether memory, handles, tasks and files stay as they are.

day.py     a day of a learner and its nodes, in virtual time
joins.py   thousands of joins over real connections
trend.py   whether what was measured grows
usage.py   what this process uses
"""

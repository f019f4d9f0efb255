"""A swarm's use of resources over a day: whether memory, handles, tasks and files stay constant.

day.py     a day of a learner and its nodes, in virtual time
joins.py   thousands of joins over real connections
trend.py   whether a measurement grows
usage.py   the resources that this process uses
"""

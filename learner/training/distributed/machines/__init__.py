"""Several machines that train one policy together: they meet before they begin, and end together.

- `board`: what each machine says, in the store at the rendezvous
- `first`: the machine on which the node runs
- `interfaces`: the network interface over which ranks speak
- `meeting`: machines wait until all are here, and know why it is over
- `other`: a machine that joins the first one
- `said`: what machines say to each other, as values
"""

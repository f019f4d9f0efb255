"""Several machines that train one policy together: they meet before they begin, and end together.

One file each: what they say and what follows (`said`), the rules of the machine on which the node runs (`first`), those
of each other one (`other`), the meeting itself, over the store that torchrun uses anyway (`meeting`), and which network
interface the ranks speak over (`interfaces`).
"""

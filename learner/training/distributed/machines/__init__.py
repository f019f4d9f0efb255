"""Several machines that train one policy together: they meet before they begin, and end together.

- `first_machine`: the machine on which the node runs
- `interfaces`: the network interface over which ranks speak
- `joining_machine`: a machine that joins the first one
- `meeting`: machines wait until all are here, and know why it is over
- `messages`: what machines say to each other, as values
- `roll_call`: what each machine says, in the store at the rendezvous
"""

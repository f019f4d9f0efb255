"""Run several machines that train one policy together: they meet before they begin, and end together.

- `first_machine`: the rules of the machine on which the node runs
- `interfaces`: choose the network interface over which ranks communicate
- `joining_machine`: the rules of a machine that joins the first one
- `meeting`: wait until all machines are here, and learn why training is over
- `messages`: the messages between machines, as values
- `roll_call`: exchange these messages in the store at the rendezvous
"""

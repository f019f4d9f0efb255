"""What peers say to each other, and the rules that both ends must compute alike.

Nothing here opens a file or a socket, asks for the time, or knows trio, torch or libp2p: every function
is a function of its arguments, so two implementations that agree on `docs/protocol.md` agree on every result.
"""

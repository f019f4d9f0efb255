"""What lies between the operating system's sockets and a secure connection: addresses, TCP, and how fast bytes may go.
No cryptography here.

- `addresses`: multiaddrs that we can listen on and dial
- `fair_rate_limit`: core of the caps: a token bucket that all connections share by turns
- `line_rate`: how fast a connection takes what it is given, measured while it is kept busy
- `port_reuse`: listening sockets whose ports connections leave from
- `rate_limiter`: waits until the cap allows a write or a read
- `readiness`: the sockets of all connections, waited for together
- `tcp`: a TCP connection that wakes its reader once per message
"""

"""Connect secure connections to the operating system's sockets: addresses, TCP, and how fast bytes may go.

There is no cryptography here.

- `addresses`: multiaddrs that we can listen on and dial
- `fair_rate_limit`: the core of the caps: a token bucket that all connections share in turns
- `link_rate`: measures how fast a link takes bytes while it is kept busy
- `port_reuse`: listening sockets whose ports outbound connections may leave from
- `rate_limiter`: waits until the cap allows a write or a read
- `readiness`: waits for the sockets of all connections together
- `tcp`: a TCP connection that wakes its reader once per message
"""

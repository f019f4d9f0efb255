"""Secure connections with libp2p's TLS 1.3 transport, `/tls/1.0.0`, on OpenSSL in memory.

`certificate` decides which peer a certificate stands for.

- `certificate`: certificates that say which host key stands behind a TLS key
- `record_io`: TLS records through OpenSSL, many in one go
- `records`: where TLS records end in a stream of bytes
- `transport`: the handshake, and the connection that comes of it
"""

"""Find out whether a node can be reached at an address: others dial it for us, and we for others (AutoNAT v2).

- `autonat_pb2`: the messages, generated from autonat.proto
- `client`: asks others to dial back
- `server`: dials back for others
"""

"""Whether we can be reached at an address: others dial it for us, and we for others (AutoNAT v2).

- `autonat_pb2`: the messages, made of autonat.proto
- `client`: asks others
- `server`: dials back for others
"""

"""Check golden bytes: every message that travels, field by field.

An author of another implementation of `docs/reference/protocol.md` can check it against this table. If a change alters
a line below, old nodes cannot read new ones: that is a new protocol version, not an edit.

Invariants:

- Every message class of `protocol` has an entry.
- No entry leaves a field at its default, where it would not be seen.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from protocol.accounting.claims import CostClaim, Energy, EnergySource, Price
from protocol.accounting.credit_note import CreditNote, RelayShare
from protocol.accounting.rank import Rank
from protocol.accounting.relay_receipt import RelayReceipt
from protocol.accounting.reputation import Band, ObservedDay
from protocol.accounting.reputation_note import ReputationNote
from protocol.accounting.tally import Proof, Tally, TrainedRecord
from protocol.core.codec import Message, Row, decode, encode, pack_logprobs, pack_tokens
from protocol.core.envelope import Signable
from protocol.core.errors import PeerError
from protocol.core.genesis import Genesis, LearnerCertificate
from protocol.core.ids import PolicyVersion
from protocol.core.invite import Invite
from protocol.patches.patch import PatchFile, PatchHead
from protocol.reach import Meeting, Reach, ReachKind, Way
from protocol.scores import ScoreGrant, ScoreLease, ScoreRecord, pack_scores
from protocol.trouble import Trouble, TroubleKind
from protocol.versions.announcement import Announcement
from protocol.versions.exchange import (
    TERMS,
    AskGenesis,
    AskManifest,
    AskNewest,
    AskPeers,
    AskTerms,
    Busy,
    Cancel,
    Chunk,
    Gained,
    Have,
    Missing,
    NotHeld,
    NotTold,
    PeerAddresses,
    Request,
    TaskTerms,
    TellGenesis,
    TellManifest,
    TellNewest,
    TellPeers,
    TellTerms,
    Want,
)
from protocol.versions.manifest import ChunkRef, FileEntry, Manifest, PatchEntry, TensorEntry
from protocol.versions.probe import Probe, ProbeRow
from protocol.work import (
    INSTANCE,
    KEY_IN_USE,
    Acknowledgement,
    Delivery,
    Farewell,
    Goodbye,
    Grant,
    Handback,
    Heartbeat,
    Hello,
    InboxFull,
    Introduction,
    Lease,
    LeaseRecall,
    LeaseRequest,
    LeaseReturn,
    NumberedNote,
    ProofRequest,
    Proofs,
    Receipt,
    Refused,
    Relayed,
    Revised,
    RolloutRecord,
    Rule,
    Sampler,
    Span,
    Started,
    Timing,
    Verdict,
    Welcome,
    Window,
)
from tests.support.examples import examples
from tests.support.protocol_modules import protocol_modules

KEY = b"\x4b" * 32
HASH = b"\x8a" * 32
CID = b"\x01\x55\x12\x20" + b"\xc1" * 32
LEASE = b"\x1e" * 16
PEER = "12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN"
STUB = b"\xe4\x7e"
"""Stands for an envelope inside a message; envelopes have golden bytes of their own in test_envelope.py."""

GOLDEN: list[tuple[msgspec.Struct, str]] = [
    (
        PolicyVersion(2, 700),
        """
        92                                                          # PolicyVersion: array of 2
          02                                                        # incarnation: 2
          cd 02bc                                                   # version: 700
        """,
    ),
    (
        Genesis(protocol=1, name="kites", operator=KEY, created_ms=1_700_000_000_000, nonce=bytes(range(16))),
        """
        85                                                          # Genesis: map of 5
          a8 70726f746f636f6c 01                                    # protocol: 1
          a4 6e616d65 a5 6b69746573                                 # name: "kites"
          a8 6f70657261746f72                                       # operator: KEY
            c4 20 4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b
          aa 637265617465645f6d73 cf 0000018bcfe56800               # created_ms: 1_700_000_000_000
          a5 6e6f6e6365 c4 10 000102030405060708090a0b0c0d0e0f      # nonce: 16 bytes
        """,
    ),
    (
        LearnerCertificate(learner=KEY, not_before_ms=1_700_000_000_000, not_after_ms=1_800_000_000_000),
        """
        83                                                          # LearnerCertificate: map of 3
          a7 6c6561726e6572                                         # learner: KEY
            c4 20 4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b
          ad 6e6f745f6265666f72655f6d73 cf 0000018bcfe56800         # not_before_ms: 1_700_000_000_000
          ac 6e6f745f61667465725f6d73 cf 000001a3185c5000           # not_after_ms: 1_800_000_000_000
        """,
    ),
    (
        ChunkRef(CID, 4_194_304),
        """
        92                                                          # ChunkRef: array of 2
          c4 24                                                     # cid: CID
            01551220c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1
          ce 00400000                                               # size: 4_194_304
        """,
    ),
    (
        FileEntry("model.safetensors", 4_194_404, [0, 1]),
        """
        93                                                          # FileEntry: array of 3
          b1 6d6f64656c2e7361666574656e736f7273                     # name: "model.safetensors"
          ce 00400064                                               # size: 4_194_404
          92                                                        # chunks: array of 2
            00                                                      # [0]: 0
            01                                                      # [1]: 1
        """,
    ),
    (
        TensorEntry("model.embed_tokens.weight", "BF16", [512, 64], 0, 100, 65_636),
        """
        96                                                          # TensorEntry: array of 6
          b9 6d6f64656c2e656d6265645f746f6b656e732e776569676874     # name: "model.embed_tokens.weight"
          a4 42463136                                               # dtype: "BF16"
          92                                                        # shape: array of 2
            cd 0200                                                 # [0]: 512
            40                                                      # [1]: 64
          00                                                        # file: 0
          64                                                        # start: 100
          ce 00010064                                               # end: 65_636
        """,
    ),
    (
        PatchEntry(HASH, 66_000, [2, 3]),
        """
        93                                                          # PatchEntry: array of 3
          c4 20                                                     # base: HASH
            8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a
          ce 000101d0                                               # size: 66_000
          92                                                        # chunks: array of 2
            02                                                      # [0]: 2
            03                                                      # [1]: 3
        """,
    ),
    (
        PatchFile("model.safetensors", 4_194_404, 100),
        """
        93                                                          # PatchFile: array of 3
          b1 6d6f64656c2e7361666574656e736f7273                     # name: "model.safetensors"
          ce 00400064                                               # size: 4_194_404
          64                                                        # plain: 100
        """,
    ),
    (
        PatchHead(files=[PatchFile("config.json", 100, 100)]),
        """
        81                                                          # PatchHead: map of 1
          a5 66696c6573 91                                          # files: array of 1
            93                                                      # [0]: PatchFile, array of 3
              ab 636f6e6669672e6a736f6e                             # name: "config.json"
              64                                                    # size: 100
              64                                                    # plain: 100
        """,
    ),
    (
        Manifest(
            version=PolicyVersion(2, 700),
            created_ms=1_700_000_000_000,
            certificate=STUB,
            files=[],
            chunks=[ChunkRef(CID, 100)],
            tensors=[],
            patches=[PatchEntry(HASH, 100, [0])],
        ),
        """
        87                                                          # Manifest: map of 7, the first of a swarm
          a7 76657273696f6e 92 02 cd 02bc                           # version: PolicyVersion(2, 700)
          aa 637265617465645f6d73 cf 0000018bcfe56800               # created_ms: 1_700_000_000_000
          ab 6365727469666963617465 c4 02 e47e                      # certificate: STUB
          a5 66696c6573 90                                          # files: array of 0
          a6 6368756e6b73 91                                        # chunks: array of 1
            92                                                      # [0]: ChunkRef, array of 2
              c4 24                                                 # cid: CID
                01551220c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1
              64                                                    # size: 100
          a7 74656e736f7273 90                                      # tensors: array of 0
          a7 70617463686573 91                                      # patches: array of 1
            93                                                      # [0]: PatchEntry, array of 3
              c4 20                                                 # base: HASH
                8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a
              64                                                    # size: 100
              91                                                    # chunks: array of 1
                00                                                  # [0]: 0
        """,
    ),
    (
        Manifest(
            version=PolicyVersion(2, 700),
            previous=HASH,
            created_ms=1_700_000_000_000,
            certificate=STUB,
            files=[FileEntry("config.json", 100, [0])],
            chunks=[ChunkRef(CID, 100)],
            tensors=[TensorEntry("w", "F32", [5], 0, 80, 100)],
        ),
        """
        87                                                          # Manifest: map of 7
          a7 76657273696f6e 92                                      # version: PolicyVersion, array of 2
            02                                                      # incarnation: 2
            cd 02bc                                                 # version: 700
          a8 70726576696f7573                                       # previous: HASH
            c4 20 8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a
          aa 637265617465645f6d73 cf 0000018bcfe56800               # created_ms: 1_700_000_000_000
          ab 6365727469666963617465 c4 02 e47e                      # certificate: STUB
          a5 66696c6573 91                                          # files: array of 1
            93                                                      # [0]: FileEntry, array of 3
              ab 636f6e6669672e6a736f6e                             # name: "config.json"
              64                                                    # size: 100
              91                                                    # chunks: array of 1
                00                                                  # [0]: 0
          a6 6368756e6b73 91                                        # chunks: array of 1
            92                                                      # [0]: ChunkRef, array of 2
              c4 24                                                 # cid: CID
                01551220c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1
              64                                                    # size: 100
          a7 74656e736f7273 91                                      # tensors: array of 1
            96                                                      # [0]: TensorEntry, array of 6
              a1 77                                                 # name: "w"
              a3 463332                                             # dtype: "F32"
              91                                                    # shape: array of 1
                05                                                  # [0]: 5
              00                                                    # file: 0
              50                                                    # start: 80
              64                                                    # end: 100
        """,
    ),
    (
        Announcement(
            version=PolicyVersion(2, 700),
            manifest=HASH,
            manifest_bytes=70_000,
            total_bytes=8_000_000_000,
            certificate=STUB,
        ),
        """
        85                                                          # Announcement: map of 5
          a7 76657273696f6e 92                                      # version: PolicyVersion, array of 2
            02                                                      # incarnation: 2
            cd 02bc                                                 # version: 700
          a8 6d616e6966657374                                       # manifest: HASH
            c4 20 8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a
          ae 6d616e69666573745f6279746573 ce 00011170               # manifest_bytes: 70_000
          ab 746f74616c5f6279746573 cf 00000001dcd65000             # total_bytes: 8_000_000_000
          ab 6365727469666963617465 c4 02 e47e                      # certificate: STUB
        """,
    ),
    (
        AskGenesis(),
        """
        81                                                          # AskGenesis: map of 1
          a4 74797065 a8 67656e657369733f                           # type: "genesis?"
        """,
    ),
    (
        AskNewest(),
        """
        81                                                          # AskNewest: map of 1
          a4 74797065 a7 6e65776573743f                             # type: "newest?"
        """,
    ),
    (
        AskManifest(manifest=HASH),
        """
        82                                                          # AskManifest: map of 2
          a4 74797065 a9 6d616e69666573743f                         # type: "manifest?"
          a8 6d616e6966657374                                       # manifest: HASH
            c4 20 8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a
        """,
    ),
    (
        AskManifest(manifest=HASH, offset=4_194_304),
        """
        83                                                          # AskManifest: map of 3
          a4 74797065 a9 6d616e69666573743f                         # type: "manifest?"
          a8 6d616e6966657374                                       # manifest: HASH
            c4 20 8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a
          a6 6f6666736574 ce 00400000                               # offset: 4_194_304
        """,
    ),
    (
        AskPeers(),
        """
        81                                                          # AskPeers: map of 1
          a4 74797065 a6 70656572733f                               # type: "peers?"
        """,
    ),
    (
        TellGenesis(genesis=STUB),
        """
        82                                                          # TellGenesis: map of 2
          a4 74797065 a7 67656e65736973                             # type: "genesis"
          a7 67656e65736973 c4 02 e47e                              # genesis: STUB
        """,
    ),
    (
        TellNewest(announcement=STUB),
        """
        82                                                          # TellNewest: map of 2
          a4 74797065 a6 6e6577657374                               # type: "newest"
          ac 616e6e6f756e63656d656e74 c4 02 e47e                    # announcement: STUB
        """,
    ),
    (
        TellNewest(),
        """
        81                                                          # TellNewest: map of 1
          a4 74797065 a6 6e6577657374                               # type: "newest"
        """,
    ),
    (
        TellManifest(manifest=STUB),
        """
        82                                                          # TellManifest: map of 2
          a4 74797065 a8 6d616e6966657374                           # type: "manifest"
          a8 6d616e6966657374 c4 02 e47e                            # manifest: STUB
        """,
    ),
    (
        TellManifest(manifest=STUB, total=4_194_306),
        """
        83                                                          # TellManifest: map of 3
          a4 74797065 a8 6d616e6966657374                           # type: "manifest"
          a8 6d616e6966657374 c4 02 e47e                            # manifest: STUB
          a5 746f74616c ce 00400002                                 # total: 4_194_306
        """,
    ),
    (
        PeerAddresses(peer=PEER, addresses=["/ip4/192.0.2.1/tcp/4001"]),
        """
        82                                                          # PeerAddresses: map of 2
          a4 70656572                                               # peer: PEER
            d9 34
              313244334b6f6f5744704a3741733742574177524d6675315655325743714e6a76713338
              374a45594b44426a346b78366e58544e
          a9 616464726573736573 91                                  # addresses: array of 1
            b7 2f6970342f3139322e302e322e312f7463702f34303031       # [0]: "/ip4/192.0.2.1/tcp/4001"
        """,
    ),
    (
        TellPeers(peers=[PeerAddresses(peer=PEER)]),
        """
        82                                                          # TellPeers: map of 2
          a4 74797065 a5 7065657273                                 # type: "peers"
          a5 7065657273 91                                          # peers: array of 1
            81                                                      # [0]: PeerAddresses, map of 1
              a4 70656572                                           # peer: PEER
                d9 34
                  313244334b6f6f5744704a3741733742574177524d6675315655325743714e6a76713338
                  374a45594b44426a346b78366e58544e
        """,
    ),
    (
        AskTerms(token="swordfish"),
        """
        82                                                          # AskTerms: map of 2
          a4 74797065 a6 7465726d733f                               # type: "terms?"
          a5 746f6b656e a9 73776f726466697368                       # token: "swordfish"
        """,
    ),
    (
        AskTerms(),
        """
        81                                                          # AskTerms: map of 1
          a4 74797065 a6 7465726d733f                               # type: "terms?"
        """,
    ),
    (
        TellGenesis(genesis=STUB, ext={TERMS: b""}),
        """
        83                                                          # TellGenesis: map of 3
          a4 74797065 a7 67656e65736973                             # type: "genesis"
          a3 657874 81                                              # ext: map of 1
            ac 766f6c6572792e7465726d73 c4 00                       # volery.terms: no bytes
          a7 67656e65736973 c4 02 e47e                              # genesis: STUB
        """,
    ),
    (
        TaskTerms(name="reverse", share=0.75, about="words"),
        """
        83                                                          # TaskTerms: map of 3
          a4 6e616d65 a7 72657665727365                             # name: "reverse"
          a5 7368617265 cb 3fe8000000000000                         # share: 0.75
          a5 61626f7574 a5 776f726473                               # about: "words"
        """,
    ),
    (
        TellTerms(
            certificate=STUB,
            model="Qwen3",
            tasks=[TaskTerms(name="sort")],
            step=3,
            steps=300,
            staleness=2,
            group_size=16,
            max_new_tokens=512,
            max_turns=4,
            now_ms=1_700_000_000_000,
        ),
        """
        8b                                                          # TellTerms: map of 11
          a4 74797065 a5 7465726d73                                 # type: "terms"
          ab 6365727469666963617465 c4 02 e47e                      # certificate: STUB
          a5 6d6f64656c a5 5177656e33                               # model: "Qwen3"
          a5 7461736b73 91                                          # tasks: array of 1
            81                                                      # [0]: TaskTerms, map of 1
              a4 6e616d65 a4 736f7274                               # name: "sort"
          a4 73746570 03                                            # step: 3
          a5 7374657073 cd 012c                                     # steps: 300
          a9 7374616c656e657373 02                                  # staleness: 2
          aa 67726f75705f73697a65 10                                # group_size: 16
          ae 6d61785f6e65775f746f6b656e73 cd 0200                   # max_new_tokens: 512
          a9 6d61785f7475726e73 04                                  # max_turns: 4
          a6 6e6f775f6d73 cf 0000018bcfe56800                       # now_ms: 1_700_000_000_000
        """,
    ),
    (
        NotTold(reason="no token"),
        """
        82                                                          # NotTold: map of 2
          a4 74797065 a8 6e6f742d746f6c64                           # type: "not-told"
          a6 726561736f6e a8 6e6f20746f6b656e                       # reason: "no token"
        """,
    ),
    (
        NotHeld(),
        """
        81                                                          # NotHeld: map of 1
          a4 74797065 a8 6e6f742d68656c64                           # type: "not-held"
        """,
    ),
    (
        Want(manifest=HASH, everything=True),
        """
        83                                                          # Want: map of 3
          a4 74797065 a4 77616e74                                   # type: "want"
          a8 6d616e6966657374                                       # manifest: HASH
            c4 20 8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a
          aa 65766572797468696e67 c3                                # everything: true
        """,
    ),
    (
        Have(manifest=HASH, bitmap=b"\x05"),
        """
        83                                                          # Have: map of 3
          a4 74797065 a4 68617665                                   # type: "have"
          a8 6d616e6966657374                                       # manifest: HASH
            c4 20 8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a
          a6 6269746d6170 c4 01 05                                  # bitmap: chunks 0 and 2
        """,
    ),
    (
        Gained(chunks=[3, 200]),
        """
        82                                                          # Gained: map of 2
          a4 74797065 a6 6761696e6564                               # type: "gained"
          a6 6368756e6b73 92                                        # chunks: array of 2
            03                                                      # [0]: 3
            cc c8                                                   # [1]: 200
        """,
    ),
    (
        Request(cid=CID),
        """
        82                                                          # Request: map of 2
          a4 74797065 a7 72657175657374                             # type: "request"
          a3 636964                                                 # cid: CID
            c4 24 01551220c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1
        """,
    ),
    (
        Cancel(cid=CID),
        """
        82                                                          # Cancel: map of 2
          a4 74797065 a6 63616e63656c                               # type: "cancel"
          a3 636964                                                 # cid: CID
            c4 24 01551220c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1
        """,
    ),
    (
        Chunk(cid=CID, data=b"chunk"),
        """
        83                                                          # Chunk: map of 3
          a4 74797065 a5 6368756e6b                                 # type: "chunk"
          a3 636964                                                 # cid: CID
            c4 24 01551220c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1
          a4 64617461 c4 05 6368756e6b                              # data: "chunk"
        """,
    ),
    (
        Busy(cid=CID, retry_after_ms=250),
        """
        83                                                          # Busy: map of 3
          a4 74797065 a4 62757379                                   # type: "busy"
          a3 636964                                                 # cid: CID
            c4 24 01551220c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1
          ae 72657472795f61667465725f6d73 cc fa                     # retry_after_ms: 250
        """,
    ),
    (
        Missing(cid=CID),
        """
        82                                                          # Missing: map of 2
          a4 74797065 a7 6d697373696e67                             # type: "missing"
          a3 636964                                                 # cid: CID
            c4 24 01551220c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1
        """,
    ),
    (
        Price(micros_per_hour=350_000, currency="EUR"),
        """
        82                                                          # Price: map of 2
          af 6d6963726f735f7065725f686f7572 ce 00055730             # micros_per_hour: 350_000
          a8 63757272656e6379 a3 455552                             # currency: "EUR"
        """,
    ),
    (
        Price(),
        """
        80                                                          # Price: map of 0
        """,
    ),
    (
        CostClaim(engine_s=1.5),
        """
        81                                                          # CostClaim: map of 1
          a8 656e67696e655f73 cb 3ff8000000000000                   # engine_s: 1.5
        """,
    ),
    (
        Sampler(temperature=0.75),
        """
        81                                                          # Sampler: map of 1
          ab 74656d7065726174757265 cb 3fe8000000000000             # temperature: 0.75
        """,
    ),
    (
        Lease(
            id=LEASE,
            peer=PEER,
            task="reversal",
            prompt=pack_tokens([1, 256]),
            seeds=[7, 2**64 - 1],
            sampler=Sampler(),
            stop_ids=[2],
            max_new_tokens=64,
            minimum=PolicyVersion(2, 700),
            issued_ms=1_700_000_000_000,
            deadline_ms=1_700_000_060_000,
        ),
        """
        8b                                                          # Lease: map of 11
          a2 6964 c4 10 1e1e1e1e1e1e1e1e1e1e1e1e1e1e1e1e            # id: LEASE
          a4 70656572                                               # peer: PEER
            d9 34
              313244334b6f6f5744704a3741733742574177524d6675315655325743714e6a76713338
              374a45594b44426a346b78366e58544e
          a4 7461736b a8 726576657273616c                           # task: "reversal"
          a6 70726f6d7074 c4 08 0100000000010000                    # prompt: tokens 1 and 256, u32 little-endian
          a5 7365656473 92                                          # seeds: array of 2
            07                                                      # [0]: 7
            cf ffffffffffffffff                                     # [1]: 18_446_744_073_709_551_615
          a7 73616d706c6572 80                                      # sampler: Sampler, map of 0
          a8 73746f705f696473 91                                    # stop_ids: array of 1
            02                                                      # [0]: 2
          ae 6d61785f6e65775f746f6b656e73 40                        # max_new_tokens: 64
          a7 6d696e696d756d 92                                      # minimum: PolicyVersion, array of 2
            02                                                      # incarnation: 2
            cd 02bc                                                 # version: 700
          a9 6973737565645f6d73 cf 0000018bcfe56800                 # issued_ms: 1_700_000_000_000
          ab 646561646c696e655f6d73 cf 0000018bcfe65260             # deadline_ms: 1_700_000_060_000
        """,
    ),
    (
        Lease(
            id=LEASE,
            peer=PEER,
            task="reversal",
            prompt=pack_tokens([1, 256]),
            seeds=[7],
            sampler=Sampler(),
            stop_ids=[2],
            max_new_tokens=63,
            minimum=PolicyVersion(2, 700),
            issued_ms=1_700_000_000_000,
            deadline_ms=1_700_000_060_000,
            start=1,
        ),
        """
        8c                                                          # Lease: map of 12
          a2 6964 c4 10 1e1e1e1e1e1e1e1e1e1e1e1e1e1e1e1e            # id: LEASE
          a4 70656572                                               # peer: PEER
            d9 34
              313244334b6f6f5744704a3741733742574177524d6675315655325743714e6a76713338
              374a45594b44426a346b78366e58544e
          a4 7461736b a8 726576657273616c                           # task: "reversal"
          a6 70726f6d7074 c4 08 0100000000010000                    # prompt: tokens 1 and 256, which is begun
          a5 7365656473 91                                          # seeds: array of 1
            07                                                      # [0]: 7
          a7 73616d706c6572 80                                      # sampler: Sampler, map of 0
          a8 73746f705f696473 91                                    # stop_ids: array of 1
            02                                                      # [0]: 2
          ae 6d61785f6e65775f746f6b656e73 3f                        # max_new_tokens: 63
          a7 6d696e696d756d 92                                      # minimum: PolicyVersion, array of 2
            02                                                      # incarnation: 2
            cd 02bc                                                 # version: 700
          a9 6973737565645f6d73 cf 0000018bcfe56800                 # issued_ms: 1_700_000_000_000
          ab 646561646c696e655f6d73 cf 0000018bcfe65260             # deadline_ms: 1_700_000_060_000
          a5 7374617274 01                                          # start: 1
        """,
    ),
    (
        Span(0, 2, PolicyVersion(2, 700), HASH),
        """
        94                                                          # Span: array of 4
          00                                                        # start: 0
          02                                                        # end: 2
          92                                                        # version: PolicyVersion, array of 2
            02                                                      # incarnation: 2
            cd 02bc                                                 # version: 700
          c4 20                                                     # manifest: HASH
            8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a
        """,
    ),
    (
        Timing(started_ms=1_700_000_000_500, generation_ms=1200),
        """
        82                                                          # Timing: map of 2
          aa 737461727465645f6d73 cf 0000018bcfe569f4               # started_ms: 1_700_000_000_500
          ad 67656e65726174696f6e5f6d73 cd 04b0                     # generation_ms: 1_200
        """,
    ),
    (
        RolloutRecord(
            lease=LEASE,
            index=1,
            tokens=pack_tokens([256, 2]),
            logprobs=pack_logprobs([-0.5, -2.0]),
            spans=[Span(0, 2, PolicyVersion(2, 700), HASH)],
            sampler=Sampler(temperature=0.75),
            timing=Timing(started_ms=1_700_000_000_500, generation_ms=1200),
            cost=CostClaim(engine_s=1.5),
            reward=1.0,
        ),
        """
        89                                                          # RolloutRecord: map of 9
          a5 6c65617365 c4 10 1e1e1e1e1e1e1e1e1e1e1e1e1e1e1e1e      # lease: LEASE
          a5 696e646578 01                                          # index: 1
          a6 746f6b656e73 c4 08 0001000002000000                    # tokens: 256 and 2, u32 little-endian
          a8 6c6f6770726f6273 c4 08 000000bf000000c0                # logprobs: -0.5 and -2.0, f32 little-endian
          a5 7370616e73 91                                          # spans: array of 1
            94                                                      # [0]: Span, array of 4
              00                                                    # start: 0
              02                                                    # end: 2
              92                                                    # version: PolicyVersion, array of 2
                02                                                  # incarnation: 2
                cd 02bc                                             # version: 700
              c4 20                                                 # manifest: HASH
                8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a
          a7 73616d706c6572 81                                      # sampler: Sampler, map of 1
            ab 74656d7065726174757265 cb 3fe8000000000000           # temperature: 0.75
          a6 74696d696e67 82                                        # timing: Timing, map of 2
            aa 737461727465645f6d73 cf 0000018bcfe569f4             # started_ms: 1_700_000_000_500
            ad 67656e65726174696f6e5f6d73 cd 04b0                   # generation_ms: 1_200
          a4 636f7374 81                                            # cost: CostClaim, map of 1
            a8 656e67696e655f73 cb 3ff8000000000000                 # engine_s: 1.5
          a6 726577617264 cb 3ff0000000000000                       # reward: 1.0
        """,
    ),
    (
        RolloutRecord(
            lease=LEASE,
            index=0,
            tokens=pack_tokens([2]),
            logprobs=pack_logprobs([-0.5]),
            spans=[Span(0, 1, PolicyVersion(2, 700), HASH)],
            sampler=Sampler(),
            timing=Timing(started_ms=1, generation_ms=2),
            cost=CostClaim(engine_s=1.5),
            experts=bytes([7, 3, 0, 9]),
        ),
        """
        89                                                          # RolloutRecord: map of 9
          a5 6c65617365 c4 10 1e1e1e1e1e1e1e1e1e1e1e1e1e1e1e1e      # lease: LEASE
          a5 696e646578 00                                          # index: 0
          a6 746f6b656e73 c4 04 02000000                            # tokens: 2, u32 little-endian
          a8 6c6f6770726f6273 c4 04 000000bf                        # logprobs: -0.5, f32 little-endian
          a5 7370616e73 91                                          # spans: array of 1
            94                                                      # [0]: Span, array of 4
              00                                                    # start: 0
              01                                                    # end: 1
              92                                                    # version: PolicyVersion, array of 2
                02                                                  # incarnation: 2
                cd 02bc                                             # version: 700
              c4 20                                                 # manifest: HASH
                8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a
          a7 73616d706c6572 80                                      # sampler: Sampler, all at defaults
          a6 74696d696e67 82                                        # timing: Timing, map of 2
            aa 737461727465645f6d73 01                              # started_ms: 1
            ad 67656e65726174696f6e5f6d73 02                        # generation_ms: 2
          a4 636f7374 81                                            # cost: CostClaim, map of 1
            a8 656e67696e655f73 cb 3ff8000000000000                 # engine_s: 1.5
          a7 65787065727473 c4 04 07030009                          # experts: of one token, two layers, two in each
        """,
    ),
    (
        Verdict(record=HASH, index=1, rule=Rule.STALE, reward=0.5, detail="lag 4"),
        """
        85                                                          # Verdict: map of 5
          a6 7265636f7264                                           # record: HASH
            c4 20 8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a
          a5 696e646578 01                                          # index: 1
          a4 72756c65 a5 7374616c65                                 # rule: "stale"
          a6 726577617264 cb 3fe0000000000000                       # reward: 0.5
          a6 64657461696c a5 6c61672034                             # detail: "lag 4"
        """,
    ),
    (
        Receipt(
            lease=LEASE,
            peer=PEER,
            version=PolicyVersion(2, 701),
            issued_ms=1_700_000_001_000,
            tokens=2,
            verdicts=[Verdict(record=HASH, index=1, rule=Rule.ADMITTED)],
            certificate=STUB,
        ),
        """
        87                                                          # Receipt: map of 7
          a5 6c65617365 c4 10 1e1e1e1e1e1e1e1e1e1e1e1e1e1e1e1e      # lease: LEASE
          a4 70656572                                               # peer: PEER
            d9 34
              313244334b6f6f5744704a3741733742574177524d6675315655325743714e6a76713338
              374a45594b44426a346b78366e58544e
          a7 76657273696f6e 92                                      # version: PolicyVersion, array of 2
            02                                                      # incarnation: 2
            cd 02bd                                                 # version: 701
          a9 6973737565645f6d73 cf 0000018bcfe56be8                 # issued_ms: 1_700_000_001_000
          a6 746f6b656e73 02                                        # tokens: 2
          a8 7665726469637473 91                                    # verdicts: array of 1
            83                                                      # [0]: Verdict, map of 3
              a6 7265636f7264                                       # record: HASH
                c4 20 8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a
              a5 696e646578 01                                      # index: 1
              a4 72756c65 a8 61646d6974746564                       # rule: "admitted"
          ab 6365727469666963617465 c4 02 e47e                      # certificate: STUB
        """,
    ),
    (
        RelayReceipt(manifest=HASH, relays=[PEER], first=700, givers=bytes([1, 0, 1])),
        """
        84                                                          # RelayReceipt: map of 4
          a8 6d616e6966657374                                       # manifest: HASH
            c4 20 8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a
          a6 72656c617973 91                                        # relays: array of 1
            d9 34                                                   # [0]: PEER
              313244334b6f6f5744704a3741733742574177524d6675315655325743714e6a
              76713338374a45594b44426a346b78366e58544e
          a5 6669727374 cd 02bc                                     # first: 700
          a6 676976657273 c4 03 010001                              # givers: [0] gave 700 and 702
        """,
    ),
    (
        RelayShare(PEER, 1_000_000),
        """
        92                                                          # RelayShare: array of 2
          d9 34                                                     # peer: PEER
            313244334b6f6f5744704a3741733742574177524d6675315655325743714e6a
            76713338374a45594b44426a346b78366e58544e
          ce 000f4240                                               # size_bytes: 1_000_000
        """,
    ),
    (
        CreditNote(
            receipt=HASH,
            manifest=HASH,
            receiver=PEER,
            shares=[RelayShare(PEER, 1_000_000)],
            issued_ms=1_700_000_001_000,
            certificate=STUB,
        ),
        """
        86                                                          # CreditNote: map of 6
          a7 72656365697074                                         # receipt: HASH
            c4 20 8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a
          a8 6d616e6966657374                                       # manifest: HASH
            c4 20 8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a
          a8 7265636569766572                                       # receiver: PEER
            d9 34
              313244334b6f6f5744704a3741733742574177524d6675315655325743714e6a76713338
              374a45594b44426a346b78366e58544e
          a6 736861726573 91                                        # shares: array of 1
            92                                                      # [0]: RelayShare, array of 2
              d9 34                                                 # peer: PEER
                313244334b6f6f5744704a3741733742574177524d6675315655325743714e6a
                76713338374a45594b44426a346b78366e58544e
              ce 000f4240                                           # size_bytes: 1_000_000
          a9 6973737565645f6d73 cf 0000018bcfe56be8                 # issued_ms: 1_700_000_001_000
          ab 6365727469666963617465 c4 02 e47e                      # certificate: STUB
        """,
    ),
    (
        ObservedDay(
            day=20_000,
            present_ms=86_400_000,
            missed_ms=600_000,
            leases_in_time=700,
            leases_failed=1,
            groups_clean=698,
            groups_blamed=2,
            audits_passed=21,
            audits_failed=3,
            bytes_given=4_194_304,
            bytes_had=65_636,
        ),
        """
        9b                                                          # ObservedDay: array of 11
          cd 4e20                                                   # day: 20_000, which is 2024-10-04
          ce 05265c00                                               # present_ms: 86_400_000
          ce 000927c0                                               # missed_ms: 600_000
          cd 02bc                                                   # leases_in_time: 700
          01                                                        # leases_failed: 1
          cd 02ba                                                   # groups_clean: 698
          02                                                        # groups_blamed: 2
          15                                                        # audits_passed: 21
          03                                                        # audits_failed: 3
          ce 00400000                                               # bytes_given: 4_194_304
          ce 00010064                                               # bytes_had: 65_636
        """,
    ),
    (
        ReputationNote(
            peer=PEER,
            scale=1,
            day=20_000,
            band=Band.BANNED,
            score=700,
            availability=996,
            timeliness=950,
            honesty=900,
            soundness=125,
            service=30,
            days=[ObservedDay(day=20_000, audits_failed=3)],
            banned="20 of 28 tokens",
            issued_ms=1_728_000_001_000,
            certificate=STUB,
        ),
        """
        8e                                                          # ReputationNote: map of 14
          a4 70656572                                               # peer: PEER
            d9 34
              313244334b6f6f5744704a3741733742574177524d6675315655325743714e6a76713338
              374a45594b44426a346b78366e58544e
          a5 7363616c65 01                                          # scale: 1
          a3 646179 cd 4e20                                         # day: 20_000
          a4 62616e64 a6 62616e6e6564                               # band: "banned"
          a5 73636f7265 cd 02bc                                     # score: 700
          ac 617661696c6162696c697479 cd 03e4                       # availability: 996
          aa 74696d656c696e657373 cd 03b6                           # timeliness: 950
          a7 686f6e65737479 cd 0384                                 # honesty: 900
          a9 736f756e646e657373 7d                                  # soundness: 125
          a7 73657276696365 1e                                      # service: 30
          a4 64617973 91                                            # days: array of 1
            9b                                                      # [0]: ObservedDay, array of 11
              cd 4e20                                               # day: 20_000
              00 00 00 00 00 00 00                                  # nothing but
              03                                                    # audits_failed: 3
              00 00
          a6 62616e6e6564                                           # banned: "20 of 28 tokens"
            af 3230206f6620323820746f6b656e73
          a9 6973737565645f6d73 cf 0000019254d383e8                 # issued_ms: 1_728_000_001_000
          ab 6365727469666963617465 c4 02 e47e                      # certificate: STUB
        """,
    ),
    (
        TrainedRecord(HASH, PEER, LEASE, 1, PolicyVersion(2, 700)),
        """
        95                                                          # TrainedRecord: array of 5
          c4 20                                                     # record: HASH
            8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a
          d9 34                                                     # peer: PEER
            313244334b6f6f5744704a3741733742574177524d6675315655325743714e6a
            76713338374a45594b44426a346b78366e58544e
          c4 10 1e1e1e1e1e1e1e1e1e1e1e1e1e1e1e1e                    # lease: LEASE
          01                                                        # index: 1
          92                                                        # version: PolicyVersion, array of 2
            02                                                      # incarnation: 2
            cd 02bc                                                 # version: 700
        """,
    ),
    (
        Tally(
            version=PolicyVersion(2, 700),
            after=698,
            records=64,
            root=HASH,
            issued_ms=1_700_000_001_000,
            certificate=STUB,
        ),
        """
        86                                                          # Tally: map of 6
          a7 76657273696f6e 92                                      # version: PolicyVersion, array of 2
            02                                                      # incarnation: 2
            cd 02bc                                                 # version: 700
          a5 6166746572 cd 02ba                                     # after: 698
          a7 7265636f726473 40                                      # records: 64
          a4 726f6f74                                               # root: HASH
            c4 20 8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a
          a9 6973737565645f6d73 cf 0000018bcfe56be8                 # issued_ms: 1_700_000_001_000
          ab 6365727469666963617465 c4 02 e47e                      # certificate: STUB
        """,
    ),
    (
        Proof(leaf=STUB, place=17, path=[HASH]),
        """
        83                                                          # Proof: map of 3
          a4 6c656166 c4 02 e47e                                    # leaf: STUB
          a5 706c616365 11                                          # place: 17
          a4 70617468 91                                            # path: array of 1
            c4 20                                                   # [0]: HASH
              8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a
        """,
    ),
    (
        Hello(
            protocol=1,
            name="attic",
            token="swordfish",
            addresses=["/ip4/192.0.2.1/tcp/4001"],
            leases=[LEASE],
            price=Price(micros_per_hour=350_000),
            engine="transformers",
            machine="RTX 4090",
            ext={"drain": b"\x01"},
        ),
        """
        8a                                                          # Hello: map of 10
          a4 74797065 a5 68656c6c6f                                 # type: "hello"
          a3 657874 81                                              # ext: map of 1
            a5 647261696e c4 01 01                                  # drain: one byte
          a8 70726f746f636f6c 01                                    # protocol: 1
          a4 6e616d65 a5 6174746963                                 # name: "attic"
          a5 746f6b656e a9 73776f726466697368                       # token: "swordfish"
          a9 616464726573736573 91                                  # addresses: array of 1
            b7 2f6970342f3139322e302e322e312f7463702f34303031       # [0]: "/ip4/192.0.2.1/tcp/4001"
          a5 7072696365 81                                          # price: Price, map of 1
            af 6d6963726f735f7065725f686f7572 ce 00055730           # micros_per_hour: 350_000
          a6 656e67696e65 ac 7472616e73666f726d657273               # engine: "transformers"
          a7 6d616368696e65 a8 5254582034303930                     # machine: "RTX 4090"
          a6 6c6561736573 91                                        # leases: array of 1
            c4 10 1e1e1e1e1e1e1e1e1e1e1e1e1e1e1e1e                  # [0]: LEASE
        """,
    ),
    (
        Hello(protocol=1, price=Price(), ext={INSTANCE: bytes(range(16))}),
        """
        84                                                          # Hello: map of 4
          a4 74797065 a5 68656c6c6f                                 # type: "hello"
          a3 657874 81                                              # ext: map of 1
            af 766f6c6572792e696e7374616e6365                       # "volery.instance"
              c4 10 000102030405060708090a0b0c0d0e0f                # 16 bytes
          a8 70726f746f636f6c 01                                    # protocol: 1
          a5 7072696365 80                                          # price: Price, an empty map
        """,
    ),
    (
        Heartbeat(installed=PolicyVersion(2, 700), pending=16, bytes_up=1_000_000, bytes_down=300, engine_s=2.5),
        """
        86                                                          # Heartbeat: map of 6
          a4 74797065 a9 686561727462656174                         # type: "heartbeat"
          a9 696e7374616c6c6564 92                                  # installed: PolicyVersion, array of 2
            02                                                      # incarnation: 2
            cd 02bc                                                 # version: 700
          a7 70656e64696e67 10                                      # pending: 16
          a8 62797465735f7570 ce 000f4240                           # bytes_up: 1_000_000
          aa 62797465735f646f776e cd 012c                           # bytes_down: 300
          a8 656e67696e655f73 cb 4004000000000000                   # engine_s: 2.5
        """,
    ),
    (
        Heartbeat(pending=16, tokens_per_s=1500.5),
        """
        83                                                          # Heartbeat: map of 3
          a4 74797065 a9 686561727462656174                         # type: "heartbeat"
          a7 70656e64696e67 10                                      # pending: 16
          ac 746f6b656e735f7065725f73 cb 4097720000000000           # tokens_per_s: 1500.5
        """,
    ),
    (
        Heartbeat(hours_left_s=1800.0),
        """
        82                                                          # Heartbeat: map of 2
          a4 74797065 a9 686561727462656174                         # type: "heartbeat"
          ac 686f7572735f6c6566745f73 cb 409c200000000000           # hours_left_s: 1800.0
        """,
    ),
    (
        Heartbeat(hours_left_s=0.0),
        """
        82                                                          # Heartbeat: map of 2
          a4 74797065 a9 686561727462656174                         # type: "heartbeat"
          ac 686f7572735f6c6566745f73 cb 0000000000000000           # hours_left_s: 0.0, not nil: outside them
        """,
    ),
    (
        Energy(EnergySource.OWNER, 0.5),
        """
        92                                                          # Energy, array of 2
          a5 6f776e6572                                             # source: "owner"
          cb 3fe0000000000000                                       # joules: 0.5
        """,
    ),
    (
        Heartbeat(energy=[Energy(EnergySource.NVML, 3.6e6), Energy(EnergySource.RAPL, 1500.5)]),
        """
        82                                                          # Heartbeat: map of 2
          a4 74797065 a9 686561727462656174                         # type: "heartbeat"
          a6 656e65726779 92                                        # energy: array of 2
            92                                                      # [0]: Energy, array of 2
              a4 6e766d6c                                           # source: "nvml"
              cb 414b774000000000                                   # joules: 3.6e6
            92                                                      # [1]: Energy, array of 2
              a4 7261706c                                           # source: "rapl"
              cb 4097720000000000                                   # joules: 1500.5
        """,
    ),
    (
        Meeting(PEER, Way.PUNCHED),
        """
        92                                                          # Meeting, array of 2
          d9 34                                                     # peer: text of 52
            313244334b6f6f5744704a3741733742574177524d6675315655
            325743714e6a76713338374a45594b44426a346b78366e58544e
          a7 70756e63686564                                         # way: "punched"
        """,
    ),
    (
        Reach(
            kind=ReachKind.BY_PUNCHING,
            why="one port",
            addresses=["/ip4/192.0.2.7/tcp/4001"],
            relays=[PEER],
            met=[Meeting(PEER, Way.DIALLED)],
        ),
        """
        85                                                          # Reach: map of 5
          a4 6b696e64 ab 62795f70756e6368696e67                     # kind: "by_punching"
          a3 776879 a8 6f6e6520706f7274                             # why: "one port"
          a9 616464726573736573 91                                  # addresses: array of 1
            b7 2f6970342f3139322e302e322e372f7463702f34303031       # [0]
          a6 72656c617973 91                                        # relays: array of 1
            d9 34                                                   # [0]: text of 52
              313244334b6f6f5744704a3741733742574177524d6675315655
              325743714e6a76713338374a45594b44426a346b78366e58544e
          a3 6d6574 91                                              # met: array of 1
            92                                                      # [0]: Meeting, array of 2
              d9 34                                                 # peer: text of 52
                313244334b6f6f5744704a3741733742574177524d6675315655
                325743714e6a76713338374a45594b44426a346b78366e58544e
              a7 6469616c6c6564                                     # way: "dialled"
        """,
    ),
    (
        Trouble(TroubleKind.LEASE, 3, "bad prompt", PolicyVersion(2, 700)),
        """
        94                                                          # Trouble, array of 4
          a5 6c65617365                                             # kind: "lease"
          03                                                        # times: 3
          aa 6261642070726f6d7074                                   # reason: "bad prompt"
          92                                                        # version: PolicyVersion, array of 2
            02                                                      # incarnation: 2
            cd 02bc                                                 # version: 700
        """,
    ),
    (
        Heartbeat(
            troubles=[
                Trouble(TroubleKind.INSTALL, 300, "no such attention", PolicyVersion(2, 700)),
                Trouble(TroubleKind.ENGINE, 1, ""),
            ]
        ),
        """
        82                                                          # Heartbeat: map of 2
          a4 74797065 a9 686561727462656174                         # type: "heartbeat"
          a8 74726f75626c6573 92                                    # troubles: array of 2
            94                                                      # [0]: Trouble, array of 4
              a7 696e7374616c6c                                     # kind: "install"
              cd 012c                                               # times: 300
              b1 6e6f207375636820617474656e74696f6e                 # reason: "no such attention"
              92                                                    # version: PolicyVersion, array of 2
                02                                                  # incarnation: 2
                cd 02bc                                             # version: 700
            94                                                      # [1]: Trouble, array of 4
              a6 656e67696e65                                       # kind: "engine"
              01                                                    # times: 1
              a0                                                    # reason: ""
              c0                                                    # version: nil
        """,
    ),
    (
        LeaseRequest(rollouts=32),
        """
        82                                                          # LeaseRequest: map of 2
          a4 74797065 a6 6c656173653f                               # type: "lease?"
          a8 726f6c6c6f757473 20                                    # rollouts: 32
        """,
    ),
    (
        Started(lease=LEASE, version=PolicyVersion(2, 700)),
        """
        83                                                          # Started: map of 3
          a4 74797065 a7 73746172746564                             # type: "started"
          a5 6c65617365 c4 10 1e1e1e1e1e1e1e1e1e1e1e1e1e1e1e1e      # lease: LEASE
          a7 76657273696f6e 92                                      # version: PolicyVersion, array of 2
            02                                                      # incarnation: 2
            cd 02bc                                                 # version: 700
        """,
    ),
    (
        LeaseReturn(leases=[LEASE], reason="engine lost"),
        """
        83                                                          # LeaseReturn: map of 3
          a4 74797065 a6 72657475726e                               # type: "return"
          a6 6c6561736573 91                                        # leases: array of 1
            c4 10 1e1e1e1e1e1e1e1e1e1e1e1e1e1e1e1e                  # [0]: LEASE
          a6 726561736f6e ab 656e67696e65206c6f7374                 # reason: "engine lost"
        """,
    ),
    (
        Delivery(lease=LEASE, records=[STUB, STUB]),
        """
        83                                                          # Delivery: map of 3
          a4 74797065 a8 64656c6976657279                           # type: "delivery"
          a5 6c65617365 c4 10 1e1e1e1e1e1e1e1e1e1e1e1e1e1e1e1e      # lease: LEASE
          a7 7265636f726473 92                                      # records: array of 2
            c4 02 e47e                                              # [0]: STUB
            c4 02 e47e                                              # [1]: STUB
        """,
    ),
    (
        Handback(lease=LEASE, records=[STUB], reason="paused"),
        """
        84                                                          # Handback: map of 4
          a4 74797065 a8 68616e646261636b                           # type: "handback"
          a5 6c65617365 c4 10 1e1e1e1e1e1e1e1e1e1e1e1e1e1e1e1e      # lease: LEASE
          a7 7265636f726473 91                                      # records: array of 1
            c4 02 e47e                                              # [0]: STUB
          a6 726561736f6e a6 706175736564                           # reason: "paused"
        """,
    ),
    (
        Relayed(receipt=STUB),
        """
        82                                                          # Relayed: map of 2
          a4 74797065 a7 72656c61796564                             # type: "relayed"
          a7 72656365697074 c4 02 e47e                              # receipt: STUB
        """,
    ),
    (
        NumberedNote(700, STUB),
        """
        92                                                          # NumberedNote: array of 2
          cd 02bc                                                   # number: 700
          c4 02 e47e                                                # note: STUB
        """,
    ),
    (
        ProofRequest(version=PolicyVersion(2, 700), place=17, notes=700, reputed=1_700_000_000_000),
        """
        85                                                          # ProofRequest: map of 5
          a4 74797065 a7 70726f6f66733f                             # type: "proofs?"
          a7 76657273696f6e 92                                      # version: PolicyVersion, array of 2
            02                                                      # incarnation: 2
            cd 02bc                                                 # version: 700
          a5 706c616365 11                                          # place: 17
          a5 6e6f746573 cd 02bc                                     # notes: 700
          a7 72657075746564 cf 0000018bcfe56800                     # reputed: 1_700_000_000_000
        """,
    ),
    (
        Goodbye(reason="shutdown"),
        """
        82                                                          # Goodbye: map of 2
          a4 74797065 a7 676f6f64627965                             # type: "goodbye"
          a6 726561736f6e a8 73687574646f776e                       # reason: "shutdown"
        """,
    ),
    (
        Welcome(
            protocol=1,
            now_ms=1_700_000_000_000,
            heartbeat_ms=5000,
            staleness=3,
            publish_every=2,
            newest=PolicyVersion(2, 700),
            peers=[PeerAddresses(peer=PEER)],
        ),
        """
        88                                                          # Welcome: map of 8
          a4 74797065 a7 77656c636f6d65                             # type: "welcome"
          a8 70726f746f636f6c 01                                    # protocol: 1
          a6 6e6f775f6d73 cf 0000018bcfe56800                       # now_ms: 1_700_000_000_000
          ac 6865617274626561745f6d73 cd 1388                       # heartbeat_ms: 5_000
          a9 7374616c656e657373 03                                  # staleness: 3
          ad 7075626c6973685f6576657279 02                          # publish_every: 2
          a6 6e6577657374 92                                        # newest: PolicyVersion, array of 2
            02                                                      # incarnation: 2
            cd 02bc                                                 # version: 700
          a5 7065657273 91                                          # peers: array of 1
            81                                                      # [0]: PeerAddresses, map of 1
              a4 70656572                                           # peer: PEER
                d9 34
                  313244334b6f6f5744704a3741733742574177524d6675315655325743714e6a76713338
                  374a45594b44426a346b78366e58544e
        """,
    ),
    (
        Refused(reason="wrong join token", retry_after_ms=60_000),
        """
        83                                                          # Refused: map of 3
          a4 74797065 a7 72656675736564                             # type: "refused"
          a6 726561736f6e b0 77726f6e67206a6f696e20746f6b656e       # reason: "wrong join token"
          ae 72657472795f61667465725f6d73 cd ea60                   # retry_after_ms: 60_000
        """,
    ),
    (
        Refused(reason="copied", ext={KEY_IN_USE: b""}),
        """
        83                                                          # Refused: map of 3
          a4 74797065 a7 72656675736564                             # type: "refused"
          a3 657874 81                                              # ext: map of 1
            b1 766f6c6572792e6b65792d696e2d757365 c4 00             # "volery.key-in-use": no bytes
          a6 726561736f6e a6 636f70696564                           # reason: "copied"
        """,
    ),
    (
        Grant(leases=[STUB], now_ms=1_700_000_000_000, reason="paced", retry_after_ms=500),
        """
        85                                                          # Grant: map of 5
          a4 74797065 a5 6772616e74                                 # type: "grant"
          a6 6c6561736573 91                                        # leases: array of 1
            c4 02 e47e                                              # [0]: STUB
          a6 6e6f775f6d73 cf 0000018bcfe56800                       # now_ms: 1_700_000_000_000
          a6 726561736f6e a5 7061636564                             # reason: "paced"
          ae 72657472795f61667465725f6d73 cd 01f4                   # retry_after_ms: 500
        """,
    ),
    (
        ScoreGrant(leases=[STUB], now_ms=1_700_000_000_000, reason="paced", retry_after_ms=500),
        """
        85                                                          # ScoreGrant: map of 5
          a4 74797065 a7 73636f72696e67                             # type: "scoring"
          a6 6c6561736573 91                                        # leases: array of 1
            c4 02 e47e                                              # [0]: STUB
          a6 6e6f775f6d73 cf 0000018bcfe56800                       # now_ms: 1_700_000_000_000
          a6 726561736f6e a5 7061636564                             # reason: "paced"
          ae 72657472795f61667465725f6d73 cd 01f4                   # retry_after_ms: 500
        """,
    ),
    (
        ScoreLease(
            id=LEASE,
            peer=PEER,
            teacher=HASH,
            prompt=pack_tokens((5,)),
            completions=[pack_tokens((6, 7))],
            temperature=0.5,
            issued_ms=1_700_000_000_000,
            deadline_ms=1_700_000_600_000,
        ),
        """
        88                                                          # ScoreLease: map of 8
          a2 6964 c4 10 1e1e1e1e1e1e1e1e1e1e1e1e1e1e1e1e            # id: LEASE
          a4 70656572 d9 34                                         # peer: PEER
            313244334b6f6f5744704a3741733742574177524d667531565532574371
            4e6a76713338374a45594b44426a346b78366e58544e
          a7 74656163686572                                         # teacher: HASH
            c4 20 8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a
          a6 70726f6d7074 c4 04 05000000                            # prompt: 5, u32 little-endian
          ab 636f6d706c6574696f6e73 91                              # completions: array of 1
            c4 08 0600000007000000                                  # [0]: 6 and 7, u32 little-endian
          ab 74656d7065726174757265 cb 3fe0000000000000             # temperature: 0.5
          a9 6973737565645f6d73 cf 0000018bcfe56800                 # issued_ms: 1_700_000_000_000
          ab 646561646c696e655f6d73 cf 0000018bcfee8fc0             # deadline_ms: 1_700_000_600_000
        """,
    ),
    (
        ScoreRecord(lease=LEASE, scores=[pack_scores([-0.5, -2.0])], cost=CostClaim(engine_s=1.5)),
        """
        83                                                          # ScoreRecord: map of 3
          a5 6c65617365 c4 10 1e1e1e1e1e1e1e1e1e1e1e1e1e1e1e1e      # lease: LEASE
          a6 73636f726573 91                                        # scores: array of 1
            c4 08 000000bf000000c0                                  # [0]: -0.5 and -2.0, f32 little-endian
          a4 636f7374 81                                            # cost: CostClaim, map of 1
            a8 656e67696e655f73 cb 3ff8000000000000                 # engine_s: 1.5
        """,
    ),
    (
        LeaseRecall(leases=[LEASE], minimum=PolicyVersion(2, 700)),
        """
        83                                                          # LeaseRecall: map of 3
          a4 74797065 a6 726563616c6c                               # type: "recall"
          a6 6c6561736573 91                                        # leases: array of 1
            c4 10 1e1e1e1e1e1e1e1e1e1e1e1e1e1e1e1e                  # [0]: LEASE
          a7 6d696e696d756d 92                                      # minimum: PolicyVersion, array of 2
            02                                                      # incarnation: 2
            cd 02bc                                                 # version: 700
        """,
    ),
    (
        Acknowledgement(lease=LEASE, receipt=STUB),
        """
        83                                                          # Acknowledgement: map of 3
          a4 74797065 a3 61636b                                     # type: "ack"
          a5 6c65617365 c4 10 1e1e1e1e1e1e1e1e1e1e1e1e1e1e1e1e      # lease: LEASE
          a7 72656365697074 c4 02 e47e                              # receipt: STUB
        """,
    ),
    (
        InboxFull(lease=LEASE, retry_after_ms=1000),
        """
        83                                                          # InboxFull: map of 3
          a4 74797065 a4 66756c6c                                   # type: "full"
          a5 6c65617365 c4 10 1e1e1e1e1e1e1e1e1e1e1e1e1e1e1e1e      # lease: LEASE
          ae 72657472795f61667465725f6d73 cd 03e8                   # retry_after_ms: 1_000
        """,
    ),
    (
        Rank(place=3, peers=12, admitted=700, admitted_by_all=9000),
        """
        84                                                          # Rank: map of 4
          a5 706c616365 03                                          # place: 3
          a5 7065657273 0c                                          # peers: 12
          a8 61646d6974746564 cd 02bc                               # admitted: 700
          af 61646d69747465645f62795f616c6c cd 2328                 # admitted_by_all: 9000
        """,
    ),
    (
        Proofs(
            tally=STUB,
            proofs=[Proof(leaf=STUB, place=17, path=[HASH])],
            notes=[NumberedNote(700, STUB)],
            reputation=STUB,
        ),
        """
        85                                                          # Proofs: map of 5
          a4 74797065 a6 70726f6f6673                               # type: "proofs"
          a5 74616c6c79 c4 02 e47e                                  # tally: STUB
          a6 70726f6f6673 91                                        # proofs: array of 1
            83                                                      # [0]: Proof, map of 3
              a4 6c656166 c4 02 e47e                                # leaf: STUB
              a5 706c616365 11                                      # place: 17
              a4 70617468 91                                        # path: array of 1
                c4 20                                               # [0]: HASH
                  8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a
          a5 6e6f746573 91                                          # notes: array of 1
            92                                                      # [0]: NumberedNote, array of 2
              cd 02bc                                               # number: 700
              c4 02 e47e                                            # note: STUB
          aa 72657075746174696f6e c4 02 e47e                        # reputation: STUB
        """,
    ),
    (
        Revised(receipt=STUB),
        """
        82                                                          # Revised: map of 2
          a4 74797065 a7 72657669736564                             # type: "revised"
          a7 72656365697074 c4 02 e47e                              # receipt: STUB
        """,
    ),
    (
        Window(staleness=5),
        """
        82                                                          # Window: map of 2
          a4 74797065 a6 77696e646f77                               # type: "window"
          a9 7374616c656e657373 05                                  # staleness: 5
        """,
    ),
    (
        Introduction(peers=[PeerAddresses(peer=PEER)]),
        """
        82                                                          # Introduction: map of 2
          a4 74797065 a5 7065657273                                 # type: "peers"
          a5 7065657273 91                                          # peers: array of 1
            81                                                      # [0]: PeerAddresses, map of 1
              a4 70656572                                           # peer: PEER
                d9 34
                  313244334b6f6f5744704a3741733742574177524d6675315655325743714e6a76713338
                  374a45594b44426a346b78366e58544e
        """,
    ),
    (
        Farewell(reason="trained"),
        """
        82                                                          # Farewell: map of 2
          a4 74797065 a8 6661726577656c6c                           # type: "farewell"
          a6 726561736f6e a7 747261696e6564                         # reason: "trained"
        """,
    ),
    (
        ProbeRow(prompt=pack_tokens([5]), completion=pack_tokens([7]), logprobs=pack_logprobs([-0.5])),
        """
        93                                                          # ProbeRow: array of 3
          c4 04 05000000                                            # prompt: token 5
          c4 04 07000000                                            # completion: token 7
          c4 04 000000bf                                            # logprobs: -0.5
        """,
    ),
    (
        Probe(
            dtype="float32",
            rows=[ProbeRow(prompt=pack_tokens([0]), completion=pack_tokens([7]), logprobs=pack_logprobs([-0.5]))],
        ),
        """
        82                                                          # Probe: map of 2
          a5 6474797065 a7 666c6f61743332                           # dtype: "float32"
          a4 726f7773 91                                            # rows: array of 1
            93                                                      # [0]: ProbeRow, array of 3
              c4 04 00000000                                        # prompt: token 0
              c4 04 07000000                                        # completion: token 7
              c4 04 000000bf                                        # logprobs: -0.5
        """,
    ),
    (
        Invite(
            operator=KEY,
            swarm=HASH,
            addresses=["/ip4/192.0.2.1/tcp/4001"],
            token="swordfish",
            expires_ms=1_800_000_000_000,
            name="kites",
        ),
        """
        97                                                          # Invite: array of 7
          01                                                        # protocol: 1
          c4 20                                                     # operator: KEY
            4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b
          c4 20                                                     # swarm: HASH
            8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a8a
          91                                                        # addresses: array of 1
            b7 2f6970342f3139322e302e322e312f7463702f34303031       # [0]: "/ip4/192.0.2.1/tcp/4001"
          a9 73776f726466697368                                     # token: "swordfish"
          cf 000001a3185c5000                                       # expires_ms: 1_800_000_000_000
          a5 6b69746573                                             # name: "kites"
        """,
    ),
]


def literal(text: str) -> bytes:
    """Return the bytes of an annotated block: hex, with everything after # left out."""
    return bytes.fromhex("".join(line.partition("#")[0] for line in text.splitlines()))


def struct_classes() -> Iterator[type[msgspec.Struct]]:
    """Return every message of `protocol` and every part of one; private classes are file formats, views, and the
    envelope.
    """
    for module in protocol_modules():
        for value in vars(module).values():
            ours = isinstance(value, type) and issubclass(value, msgspec.Struct) and value.__module__ == module.__name__
            if ours and value not in (Message, Row, Signable) and not value.__name__.startswith("_"):
                yield value


def default_of(field: msgspec.structs.FieldInfo) -> Any:
    return field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()


def name_of(entry: tuple[msgspec.Struct, str]) -> str:
    return type(entry[0]).__name__


@pytest.mark.parametrize(("message", "text"), GOLDEN, ids=map(name_of, GOLDEN))
def test_message_is_written_and_read_as_shown(message: msgspec.Struct, text: str) -> None:
    assert encode(message).hex() == literal(text).hex()
    assert decode(type(message), literal(text), 1 << 16) == message


def test_every_message_has_an_entry() -> None:
    shown = {type(message).__name__ for message, _ in GOLDEN}
    missing = {cls.__name__ for cls in struct_classes()} - shown
    assert not missing, f"no golden bytes for {sorted(missing)}: add them, and a section to docs/reference/protocol.md"


def test_every_field_is_seen_in_some_entry() -> None:
    unseen: dict[str, set[str]] = {}
    for message, _ in GOLDEN:
        cls = type(message)
        defaults = {field.name: default_of(field) for field in msgspec.structs.fields(cls)}
        unseen.setdefault(cls.__name__, set(defaults) - {"ext"})
        unseen[cls.__name__] -= {name for name, default in defaults.items() if getattr(message, name) != default}
    unseen["Invite"].discard("protocol")  # An array leaves no default out.
    assert not {name: fields for name, fields in unseen.items() if fields}
    assert any(isinstance(message, Message) and message.ext for message, _ in GOLDEN)


def test_tags_are_part_of_the_bytes() -> None:
    """Without tags in the bytes, one class in place of another of its union would go unnoticed."""
    tagged = [(message, text) for message, text in GOLDEN if type(message).__struct_config__.tag is not None]
    assert len(tagged) > 25
    for message, text in tagged:
        tag = str(type(message).__struct_config__.tag)
        assert literal(text)[1 : 7 + len(tag)] == b"\xa4type" + bytes([0xA0 + len(tag)]) + tag.encode()


@st.composite
def mutations(draw: st.DrawFn) -> tuple[type[msgspec.Struct], bytes]:
    """Draw a golden message with a byte changed, removed, inserted, or its end cut off, once or a few times."""
    message, text = draw(st.sampled_from(GOLDEN))
    raw = bytearray(literal(text))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(raw)))
        match draw(st.sampled_from(["change", "insert", "remove", "cut"])):
            case "change":
                raw[at : at + 1] = draw(st.binary(min_size=1, max_size=1))
            case "insert":
                raw[at:at] = draw(st.binary(min_size=1, max_size=4))
            case "remove":
                del raw[at : at + draw(st.integers(1, 4))]
            case _:
                del raw[at:]
    return type(message), bytes(raw)


@settings(max_examples=examples(2000), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(mutations())
def test_mutated_message_is_read_or_refused(mutated: tuple[type[msgspec.Struct], bytes]) -> None:
    kind, raw = mutated
    try:
        message = decode(kind, raw, 1 << 16)
    except PeerError:
        return
    assert decode(kind, encode(message), 1 << 16) == message

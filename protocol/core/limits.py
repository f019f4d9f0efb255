"""Set the bounds of all messages, each with the reason that a change must consider.

A bound is checked before the bytes that it limits are parsed or allocated. Bounds are part of the protocol: a higher
bound needs a new protocol version only if old readers would refuse what new writers send.
"""

from __future__ import annotations

KIB = 1024
MIB = 1024 * KIB

PROTOCOL_VERSION = 1
"""It increases when an old node could misread a new one. A node refuses an invite or a greeting of another version."""

MAX_ANNOUNCEMENT_BYTES = 1 * KIB
"""Gossip carries state, not bulk. In a measurement, gossipsub's outbound queue lost bursts of larger messages."""

MAX_REQUEST_BYTES = 64 * KIB
"""One message from a peer whose purpose is not yet known: greetings, questions, requests. It is small, so that a
stranger costs little."""

MAX_MANIFEST_BYTES = 64 * MIB
"""The manifest of a model of 10^12 parameters in bf16 (500,000 chunks of 4 MiB, 100,000 tensors) has 32 MiB, at 49
bytes a chunk and 75 to 100 a tensor, measured. Its patches may have as many chunks again."""

MANIFEST_PIECE_BYTES = 4 * MIB
"""Part of a manifest's envelope in one answer. One piece holds up to 80,000 chunks, a model of 300 GB. It is small
enough to be held once for each peer that is asked, and large enough that 64 MiB cost sixteen round trips. It is part of
the protocol: every piece but the last has exactly this size."""

MAX_CHUNK_BYTES = 8 * MIB
"""A receiver allocates at most this for one chunk. Chunks are cut to at most 4 MiB; the rest is headroom."""

MAX_WORK_BYTES = 16 * MIB
"""One frame of the work protocol: a group of 64 completions of 16,384 tokens at 8 bytes a token, plus its leases."""

MAX_PROMPT_TOKENS = 131_072
MAX_COMPLETION_TOKENS = 131_072
"""The limit of today's long-context models. In practice the token budget of a lease is the tighter bound."""

MAX_GROUP_SIZE = 1024
"""Completions of one prompt. GRPO uses 8 to 64; an evaluation with pass@k may use more."""

MAX_LEASES_PER_GRANT = 256
"""Leases in one grant; a node that wants more asks again."""

MAX_RECORDS_PER_DELIVERY = 1024
"""Records in one delivery: one group at the largest group size."""

MAX_EXPERT_BYTES = 8 * MIB
"""Experts that a record names, at a byte or two each. 48 layers that use 8 experts each take 384 bytes a token, so this
is room for 21,845 tokens. The frame (MAX_WORK_BYTES) limits all records of a group together."""

MAX_SPANS = 64
"""Spans of one completion. One that needs more was generated across 64 publications."""

MAX_STOP_IDS = 64
"""Token ids that end a completion. Tokenizers have one to a few."""

MAX_ADDRESSES = 16
"""Addresses of one peer, or in one invite: a few interfaces, IPv4 and IPv6."""

MAX_ADDRESS_CHARS = 256
"""One multiaddr as text."""

MAX_PEERS_TOLD = 64
"""Peers named in one introduction. The mesh needs about 20 neighbours."""

MAX_TASKS_TOLD = 64
"""Tasks of a swarm's mixture that the terms list. A person who reads the terms wants to read them all."""

MAX_TOKEN_CHARS = 128
"""A join token: a password that people paste."""

MAX_RELAYS = 255
"""Relays that one receipt names, so that one byte identifies each. A node has about 10 neighbours, or 31 in a small
swarm."""

MAX_NAME_CHARS = 128
"""Names that people read: swarm, node, task, machine."""

MAX_REASON_CHARS = 512
"""One paragraph that tells a peer the reason, and what to do about it."""

MAX_MILLIS = 253_370_764_800_000
"""A point in time until the year 9999, in milliseconds. Calendars can represent it with a time zone and a day to spare.
As a duration it is 8,000 years."""

MAX_SECONDS = 10_000_000_000
"""Seconds of work: 300 years of one engine. Their cost at MAX_MICROS_PER_HOUR is still a 64-bit integer."""

MAX_MICROS_PER_HOUR = 10**12
"""A million units of a currency an hour. Configurations have the same limit."""

MAX_SPEED = 10**15
"""Tokens a second that a node may claim. If a clock stands still, any machine seems fast."""

MAX_JOULES = 10**15
"""Energy that a node has used since it started: a month of a power station."""

MAX_REWARD = 10**15
"""Largest magnitude of a reward. It is far above that of any task, and its square and sums are still finite."""

MAX_TOKEN_ID = (1 << 31) - 1
"""Engines and trainers hold token ids as signed 32-bit integers. A vocabulary has a million tokens at most."""

MIN_TEMPERATURE = 1e-20
MAX_TEMPERATURE = 100
"""Logits divided by the smallest temperature are still finite in 32 bits. At the largest, all tokens are practically
equally likely."""

MAX_STALENESS = 1 << 20
MAX_PUBLISH_EVERY = 1 << 20
"""The learner's staleness window and publication period, in training steps. Configurations end at 1000."""

MAX_DETAIL_CHARS = 512
"""Description of a peer's fault. It may quote a value that the peer made as long as its message."""

MAX_EXTENSIONS = 16
MAX_EXTENSION_NAME_CHARS = 64
MAX_EXTENSION_BYTES = 4 * KIB
"""Named extensions of a message. They are signed, and ignored by nodes that do not know them. They are small because
all nodes carry them."""

MAX_INVITE_CHARS = 4096
"""An invite: people paste it into chats and terminals."""

MAX_TENSORS = 200_000
MAX_CHUNKS = 1_000_000
MAX_FILES = 1_024
MAX_TENSOR_RANK = 8
MAX_FILE_BYTES = 1 << 40
"""Tables of a manifest. Each has its own bound, so that a signed but hostile manifest cannot exhaust a reader."""

MAX_PATCHES = 16
"""Patches of one manifest: from the version before, from the last anchor, and from a few between them."""

MAX_PATCH_HEAD_BYTES = 256 * KIB
"""The head of a patch: at most 200 bytes for each of MAX_FILES files."""

PATCH_SEGMENT_BYTES = 2 * MIB
"""One segment of a patch. The writer and the reader of a patch hold several times this size in memory. Smaller segments
cost more code tables; larger ones gain little: on bf16 weights 4 MiB saved 1 %. The size is part of the format, because
writers and readers must cut alike."""

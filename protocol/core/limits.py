"""Every bound on what travels, each with the sentence that would let you change it.

A bound is checked before the bytes it bounds are parsed or allocated. Bounds are part of the protocol: raising one
needs a new protocol version only if old readers would refuse what new writers send.
"""

from __future__ import annotations

KIB = 1024
MIB = 1024 * KIB

PROTOCOL_VERSION = 1
"""Goes up when an old node could misread a new one; a node refuses an invite or a greeting of another version."""

MAX_ANNOUNCEMENT_BYTES = 1 * KIB
"""Gossip carries state, not bulk: a burst of larger messages was measured to be lost by gossipsub's outbound queue."""

MAX_REQUEST_BYTES = 64 * KIB
"""Anything a peer may send us before we know why: greetings, asks, requests. Small, so that a stranger costs little."""

MAX_MANIFEST_BYTES = 64 * MIB
"""At 49 bytes a chunk and 75 to 100 a tensor, measured: a model of 10^12 parameters in bf16 (500,000 chunks of 4 MiB,
100,000 tensors) is 32 MiB, and its patches may have as many chunks again."""

MANIFEST_PIECE_BYTES = 4 * MIB
"""What of a manifest's envelope one answer carries; up to 80,000 chunks, a model of 300 GB, go in one. Small enough to
be held once for each peer that is asked, large enough that 64 MiB cost sixteen round trips. Part of the protocol: every
piece but the last has exactly so many bytes."""

MAX_CHUNK_BYTES = 8 * MIB
"""A receiver allocates at most this for one chunk; layout never cuts larger than 4 MiB, the rest is head room."""

MAX_WORK_BYTES = 16 * MIB
"""One frame of the work protocol: a group of 64 completions of 16,384 tokens at 8 bytes a token, plus its leases."""

MAX_PROMPT_TOKENS = 131_072
MAX_COMPLETION_TOKENS = 131_072
"""Long-context models of today end here; the token budget of a lease is the bound that matters."""

MAX_GROUP_SIZE = 1024
"""Completions of one prompt. GRPO uses 8 to 64; an evaluation with pass@k may use more."""

MAX_LEASES_PER_GRANT = 256
"""Leases in one grant; a node that wants more asks again."""

MAX_RECORDS_PER_DELIVERY = 1024
"""Records in one delivery: one group at the largest group size."""

MAX_EXPERT_BYTES = 8 * MIB
"""Experts that a record names, at a byte or two each: 48 layers that ask 8 experts each take 384 bytes a token, so this
is room for 21,845 tokens. What all records of a group take together is bounded by the frame (MAX_WORK_BYTES)."""

MAX_SPANS = 64
"""Version changes inside one completion; a completion that sees more was generated across 64 publications."""

MAX_STOP_IDS = 64
"""Token ids that end a completion; tokenizers have one to a few."""

MAX_ADDRESSES = 16
"""Addresses of one peer, or in one invite: a few interfaces, IPv4 and IPv6."""

MAX_ADDRESS_CHARS = 256
"""One multiaddr as text."""

MAX_PEERS_TOLD = 64
"""Peers named in one introduction; the mesh needs about 20 neighbours."""

MAX_TASKS_TOLD = 64
"""Tasks of a swarm's mixture: who reads the terms wants to read them all."""

MAX_TOKEN_CHARS = 128
"""A join token is a password that people paste."""

MAX_RELAYS = 255
"""Relays that one receipt names: a byte says which. A node has about 10 neighbours, or 31 in a small swarm."""

MAX_NAME_CHARS = 128
"""Names people read: swarm, node, task, machine."""

MAX_REASON_CHARS = 512
"""One paragraph that tells a peer why, and what to do about it."""

MAX_MILLIS = 253_370_764_800_000
"""Milliseconds: a point in time until the year 9999, which calendars can name with a zone and a day to spare; the same
of a length of time, 8,000 years."""

MAX_SECONDS = 10_000_000_000
"""Seconds of work, 300 years of one engine: what they cost at MAX_MICROS_PER_HOUR is still an integer of 64 bits."""

MAX_MICROS_PER_HOUR = 10**12
"""A million units of a currency an hour; configurations end there as well."""

MAX_SPEED = 10**15
"""Tokens a second that a node may say it makes: a clock that stands still makes any machine fast."""

MAX_JOULES = 10**15
"""What a node has drawn since it started: a power station's month."""

MAX_REWARD = 10**15
"""Either way. Far beyond any task, and its square and sums of it are still numbers."""

MAX_TOKEN_ID = (1 << 31) - 1
"""Engines and trainers keep token ids as signed integers of 32 bits; a vocabulary has a million at most."""

MIN_TEMPERATURE = 1e-20
MAX_TEMPERATURE = 100
"""Logits divided by the smallest one are still numbers of 32 bits; by the largest all tokens are as good as equal."""

MAX_STALENESS = 1 << 20
MAX_PUBLISH_EVERY = 1 << 20
"""What a learner says of its window and its period, in training steps; configurations end at 1000."""

MAX_DETAIL_CHARS = 512
"""What is said of a peer's fault: it may quote what the peer made as long as its message."""

MAX_EXTENSIONS = 16
MAX_EXTENSION_NAME_CHARS = 64
MAX_EXTENSION_BYTES = 4 * KIB
"""Named extensions of a message: signed, ignored where they are unknown, small because everybody carries them."""

MAX_INVITE_CHARS = 4096
"""An invite is pasted into chats and terminals."""

MAX_TENSORS = 200_000
MAX_CHUNKS = 1_000_000
MAX_FILES = 1_024
MAX_TENSOR_RANK = 8
MAX_FILE_BYTES = 1 << 40
"""Tables of a manifest, bounded one by one so that a signed but hostile manifest cannot exhaust a reader."""

MAX_PATCHES = 16
"""Patches of one manifest: from the version before, from the last anchor, and from a few between them."""

MAX_PATCH_HEAD_BYTES = 256 * KIB
"""What a patch begins with: a line of at most 200 bytes for each of MAX_FILES files."""

PATCH_SEGMENT_BYTES = 2 * MIB
"""What a patch is made of, and what making or applying one holds in memory several times over. Smaller ones cost more
code tables, larger ones gain little: on bf16 weights 4 MiB saved 1 %. Part of the format: writers and readers cut
alike."""

"""How much an endpoint takes in, holds and waits for. Whatever comes, it holds no more than these allow."""

from __future__ import annotations

MAX_REQUEST_BYTES = 512 * 1024
"""Of a request's body: a conversation of some 130,000 tokens. Longer ones are refused before they are read."""

MAX_HEAD_BYTES = 16 * 1024
"""Of a request's first line and headers, as most servers have it."""

READ_BYTES = 64 * 1024
"""Read from a connection at a time."""

MAX_CONNECTIONS = 384
"""Open at a time, fewer than the 1,024 files that a process usually may have open. Others are told 429, and closed."""

MAX_REFUSALS = 64
"""Connections beyond that which are closed in good order at a time, so that a client reads why. Others just end."""

MAX_REQUESTS = 128
"""Requests that are answered or wait for that, at a time. Each may hold MAX_REQUEST_BYTES and its tokens, so together
they hold about 200 MB at most. Others are told 429."""

MAX_COMPLETIONS = 64
"""Completions generated at a time, each of a request's `n` counting. An engine's batch is faster with more, and each
one alone slower."""

WAIT_S = 60.0
"""Longest time that a request waits for its completions to begin; then it is told 503."""

RETRY_AFTER_S = 2
"""What a client is asked to wait after 429 or 503. Completions end every second or so where many run."""

HEAD_S = 10.0
"""A request's head must have come within this time of its first byte, or of the connection's start."""

IDLE_S = 60.0
"""A connection may stay open so long without a request."""

BODY_S = 30.0
"""A request's body must have come within this time: 512 KiB on 140 kbit/s."""

STALL_S = 20.0
"""A client must take what is sent within this time. Otherwise its completions are given up, and it is closed."""

LINGER_S = 1.0
"""After a refusal what a client still sends is thrown away for so long: closed at once, many would never read it."""

MAX_N = 16
"""Completions of one request."""

MAX_NEW_TOKENS = 32_768
"""Tokens of one completion. They wait in memory only until a client has taken them."""

MAX_STOPS = 16
"""Stop strings of one request."""

MAX_STOP_CHARS = 256
"""Of one stop string: as much text may be held back while it could be the beginning of one."""

MAX_MESSAGES = 2_048
"""Of one conversation; a chat template goes over all of them several times."""

MAX_TOOLS = 128
"""Of one request, as OpenAI has it."""

MAX_TEMPERATURE = 2.0
"""As OpenAI has it; beyond, a model says nothing that is read."""

MIN_KEY_CHARS = 16
"""Of a key that guards an endpoint which others can reach: shorter ones can be guessed."""

MAX_KEY_CHARS = 4_096
"""Of a key."""

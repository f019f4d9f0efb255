"""Limit what an endpoint accepts, holds and waits for."""

from __future__ import annotations

MAX_REQUEST_BYTES = 512 * 1024
"""Most bytes of a request's body: a conversation of about 130,000 tokens. Longer ones are refused unread."""

MAX_HEAD_BYTES = 16 * 1024
"""Most bytes of a request's first line and headers, as in most servers."""

READ_BYTES = 64 * 1024
"""Bytes that are read from a connection at a time."""

MAX_CONNECTIONS = 384
"""Open connections: fewer than the 1,024 files that a process may usually open. More are answered 429, and closed."""

MAX_REFUSALS = 64
"""Connections beyond that limit that are closed with an answer at a time, so that clients read why. Others just end."""

MAX_REQUESTS = 128
"""Requests that run or wait at a time. Each may hold MAX_REQUEST_BYTES and its tokens, so together they hold about 200
MB at most. More are answered 429."""

MAX_COMPLETIONS = 64
"""Completions that are generated at a time; each of a request's `n` counts. With more of them an engine generates more
in all, but each completion takes longer."""

WAIT_S = 60.0
"""Seconds that a request may wait for its completions to begin. Then it is answered 503."""

RETRY_AFTER_S = 2
"""Seconds after which a client may try again after 429 or 503. Under load a completion ends about every second."""

HEAD_S = 10.0
"""Seconds for a request's head, from its first byte or from the start of the connection."""

IDLE_S = 60.0
"""Seconds that a connection may stay open without a request."""

BODY_S = 30.0
"""Seconds for a request's body: enough for 512 KiB at 140 kbit/s."""

STALL_S = 20.0
"""Seconds for a client to take what is sent. After that its completions are cancelled, and the connection is closed."""

LINGER_S = 1.0
"""Seconds for which data is discarded after a refusal. Many clients would not read the answer if it closed at once."""

MAX_N = 16
"""Most completions of one request."""

MAX_NEW_TOKENS = 32_768
"""Most tokens of one completion. They stay in memory only until the client has taken them."""

MAX_STOPS = 16
"""Most stop strings of one request."""

MAX_STOP_CHARS = 256
"""Most characters of one stop string: that much text may be held back while it could be the beginning of one."""

MAX_MESSAGES = 2_048
"""Most messages of one conversation: a chat template goes over all of them several times."""

MAX_TOOLS = 128
"""Most tools of one request, as in OpenAI's API."""

MAX_TEMPERATURE = 2.0
"""Highest temperature, as in OpenAI's API. Above it a model writes nothing readable."""

MIN_KEY_CHARS = 16
"""Fewest characters of a key if other machines can reach the endpoint: shorter keys can be guessed."""

MAX_KEY_CHARS = 4_096
"""Most characters of a key."""

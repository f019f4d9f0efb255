"""Reach the learner that an invite names before this node joins, and check its swarm, its certificate and the clocks.

Invariants:

- A node that answers for another swarm, or without the operator's certificate, is refused. `volery join` and `volery
  join --dry-run` use the same sentence.
- A wrong clock on this machine does not count as a fault of the operator. If a certificate is not valid now, the
  message shows both clocks.
"""

from __future__ import annotations

from collections.abc import Sequence

import trio

from node.runtime.errors import NotAllowed, RunError, UsageError
from node.runtime.formatting import counted, plain_name
from protocol.core.dates import ago, moment
from protocol.core.errors import PeerError
from protocol.core.genesis import LearnerCertificate, learner_of, open_certificate, read_genesis
from protocol.core.ids import PeerId
from protocol.core.invite import Invite
from protocol.versions import exchange
from swarm.transport.interface import DialFailed, StreamBroken, StreamRefused, Transport
from swarm.versions.manifest_search import ask

DIAL_EVERY_S = 1.0
"""Pause between attempts to reach the learner for the first time."""

FIRST_TRY_S = 10.0
"""Seconds of a single try (`wait_s` = 0): a connection over a bad line takes two seconds."""

MOST_SHOWN = 2
"""Addresses of an invite that a message shows: one of each IP version. A learner may have a dozen."""

SET_CLOCK = "Set this clock (with systemd: timedatectl set-ntp true)"


async def find_swarm(transport: Transport, invite: Invite, wait_s: float) -> tuple[PeerId, exchange.TellGenesis]:
    """Dial the invite's addresses until one answers for the invite's swarm, and return its peer id and its genesis.

    Raises RunError if none answers in time, UsageError if one answers for another swarm.
    """
    reason, began_s = "it did not answer in time", trio.current_time()
    with trio.move_on_after(wait_s or FIRST_TRY_S):
        while True:
            try:
                peer = await transport.dial(invite.addresses)
                answer = await ask(transport, peer, exchange.AskGenesis())
                if isinstance(answer, exchange.TellGenesis):
                    require_swarm(answer.genesis, invite)
                    return peer, answer
                reason = "it did not say which swarm it belongs to"
            except (DialFailed, StreamRefused, StreamBroken, trio.TooSlowError) as error:
                reason = str(error) or "it did not answer in time"
            except PeerError as error:
                raise UsageError(
                    f"The node at the invite's address could not prove that it belongs to this swarm: {error.detail}. "
                    "Ask the operator for a new invite."
                ) from None
            if trio.current_time() - began_s >= wait_s:
                break
            await trio.sleep(DIAL_EVERY_S)
    tried_s = trio.current_time() - began_s
    raise RunError(
        f"The learner cannot be reached at {shown_addresses(invite.addresses)} (tried for {tried_s:.0f} s; {reason}). "
        "Check that it runs, that the address can be reached from here, and that no firewall is in the way."
    )


def shown_addresses(addresses: Sequence[str]) -> str:
    """Return the first addresses as text, and how many more there are."""
    more = len(addresses) - MOST_SHOWN
    return ", ".join(addresses[:MOST_SHOWN]) + (f" and {counted(more, 'other')}" if more > 0 else "")


def require_swarm(raw: bytes, invite: Invite) -> None:
    """Raise UsageError unless `raw` is the genesis of the invite's swarm."""
    genesis, authority = read_genesis(raw)
    if authority != invite.authority:
        raise UsageError(
            f"The invite is for another swarm than the one at its address ({genesis.name!r}, "
            f"{authority.swarm.hex()[:8]} instead of {invite.swarm.hex()[:8]}). Ask the operator for a new invite."
        )


async def ask_terms(
    transport: Transport, learner: PeerId, told: exchange.TellGenesis, invite: Invite
) -> exchange.TellTerms | None:
    """Return the learner's terms for joining; None if it does not tell them, or the connection broke.

    Raises NotAllowed if the invite's join token is not the learner's.
    """
    if exchange.TERMS not in told.ext:
        return None
    try:
        answer = await ask(transport, learner, exchange.AskTerms(token=invite.token))
    except (StreamRefused, StreamBroken, trio.TooSlowError, PeerError):
        return None
    if isinstance(answer, exchange.NotTold):
        raise NotAllowed(f"The learner refused this node: {plain_name(answer.reason, 400)}")
    return answer if isinstance(answer, exchange.TellTerms) else None


def require_certified(terms: exchange.TellTerms, learner: PeerId, invite: Invite, *, now_ms: int) -> LearnerCertificate:
    """Return the operator's certificate for `learner`, which sent the terms. Raises UsageError if it is not valid
    now."""
    try:
        word = open_certificate(terms.certificate, invite.authority)
    except PeerError as error:
        raise UsageError(
            f"The node at the invite's address could not prove that it belongs to this swarm: {error.detail}. "
            "Ask the operator for a new invite."
        ) from None
    if learner_of(word) != learner:
        raise UsageError(
            "The node at the invite's address could not prove that it belongs to this swarm: the operator's "
            f"certificate is for {learner_of(word)}, and {learner} answers. Ask the operator for a new invite."
        )
    if not _holds(word, now_ms):
        raise UsageError(_out_of_time(word, here_ms=now_ms, there_ms=terms.now_ms))
    return word


def _holds(word: LearnerCertificate, at_ms: int) -> bool:
    return word.not_before_ms <= at_ms <= word.not_after_ms


def _out_of_time(word: LearnerCertificate, *, here_ms: int, there_ms: int) -> str:
    """Return the message about a certificate that is not valid at `here_ms`. The learner's clock shows `there_ms`; 0 if
    that was not told.
    """
    holds = f"the operator certified it from {moment(word.not_before_ms)} until {moment(word.not_after_ms)}"
    if _holds(word, there_ms):
        return (
            f"This machine's clock is probably wrong: it shows {moment(here_ms)} and is {apart(here_ms, there_ms)}, "
            f"which shows {moment(there_ms)}. The certificate fits the learner's clock and not this one: {holds}. "
            f"{SET_CLOCK}."
            " Then join again. If your watch agrees with this machine, tell the operator."
        )
    theirs = f", the learner's {moment(there_ms)}" if there_ms else ""
    return (
        f"The node at the invite's address could not prove that it belongs to this swarm: {holds}, and this machine's "
        f"clock shows {moment(here_ms)}{theirs}. Set this clock if it is wrong; otherwise ask the operator to start "
        "the learner again where operator.key is, which renews the certificate."
    )


def apart(here_ms: int, there_ms: int) -> str:
    """Return how this machine's clock differs from the learner's, to stand after "is"."""
    return f"{ago(abs(there_ms - here_ms))} {'behind' if here_ms < there_ms else 'ahead of'} the learner's"

"""Reach the learner that an invite names, before this node joins: who answers, for which swarm, and by which clock.

Invariants:
- Whoever answers for another swarm, or without the operator's word for its key, is refused in the same sentence by
  `volery join` and `volery join --dry-run`.
- A clock that is wrong here is not taken for a fault of the operator's: where a certificate does not hold now, both
  clocks are told.
"""

from __future__ import annotations

import trio

from node.runtime.errors import RunError, UsageError
from node.runtime.formatting import plain_name
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
"""Of a wait of 0 s, which is one try: a connection over a bad line takes two seconds."""

SET_CLOCK = "Set it (with systemd: timedatectl set-ntp true)"


async def find_swarm(transport: Transport, invite: Invite, wait_s: float) -> tuple[PeerId, exchange.TellGenesis]:
    """Dial the invite's addresses until one answers as the invite's swarm; return who does, and its genesis.

    Raises RunError when nobody answers in time, UsageError when somebody answers for another swarm.
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
                    f"Who answers at the invite's address does not speak for its swarm: {error.detail}."
                ) from None
            if trio.current_time() - began_s >= wait_s:
                break
            await trio.sleep(DIAL_EVERY_S)
    tried_s = trio.current_time() - began_s
    raise RunError(
        f"The learner cannot be reached at {', '.join(invite.addresses)} (tried for {tried_s:.0f} s; {reason}). "
        "Check that it runs, that the address can be reached from here, and that no firewall is in the way."
    )


def require_swarm(raw: bytes, invite: Invite) -> None:
    """Raise UsageError unless `raw` is the genesis of the invite's swarm."""
    genesis, authority = read_genesis(raw)
    if authority != invite.authority:
        raise UsageError(
            f"The invite is for another swarm than the one that answers at its address ({genesis.name!r}, "
            f"{authority.swarm.hex()[:8]} instead of {invite.swarm.hex()[:8]}). Ask the operator for a new invite."
        )


async def ask_terms(
    transport: Transport, learner: PeerId, told: exchange.TellGenesis, invite: Invite
) -> exchange.TellTerms | None:
    """What the learner asks of whoever joins; None where it does not tell, or the line broke.

    Raises UsageError when the invite's join token is not the learner's.
    """
    if exchange.TERMS not in told.ext:
        return None
    try:
        answer = await ask(transport, learner, exchange.AskTerms(token=invite.token))
    except (StreamRefused, StreamBroken, trio.TooSlowError, PeerError):
        return None
    if isinstance(answer, exchange.NotTold):
        raise UsageError(f"The learner refused this node: {plain_name(answer.reason, 400)}")
    return answer if isinstance(answer, exchange.TellTerms) else None


def require_certified(terms: exchange.TellTerms, learner: PeerId, invite: Invite, *, now_ms: int) -> LearnerCertificate:
    """The operator's word for `learner`, who told the terms. Raises UsageError unless it is one, and holds now."""
    try:
        word = open_certificate(terms.certificate, invite.authority)
    except PeerError as error:
        raise UsageError(f"Who answers at the invite's address does not speak for its swarm: {error.detail}.") from None
    if learner_of(word) != learner:
        raise UsageError(
            "Who answers at the invite's address does not speak for its swarm: the operator's certificate is for "
            f"{learner_of(word)}, and {learner} answers. Ask the operator for a new invite."
        )
    if not _holds(word, now_ms):
        raise UsageError(_out_of_time(word, here_ms=now_ms, there_ms=terms.now_ms))
    return word


def _holds(word: LearnerCertificate, at_ms: int) -> bool:
    return word.not_before_ms <= at_ms <= word.not_after_ms


def _out_of_time(word: LearnerCertificate, *, here_ms: int, there_ms: int) -> str:
    """What is said of a certificate that does not hold at `here_ms`; the learner's clock says `there_ms`, 0 if that was
    not told.
    """
    holds = f"the operator certified it from {moment(word.not_before_ms)} until {moment(word.not_after_ms)}"
    if _holds(word, there_ms):
        return (
            f"This machine's clock is probably wrong: it says {moment(here_ms)} and is {apart(here_ms, there_ms)}, "
            f"which says {moment(there_ms)}. And {holds}, which fits the learner's clock and not this one. {SET_CLOCK}."
            " Then join again. If your watch agrees with this machine, tell the operator."
        )
    theirs = f", the learner's {moment(there_ms)}" if there_ms else ""
    return (
        f"Who answers at the invite's address does not speak for its swarm now: {holds}, and this machine's clock says "
        f"{moment(here_ms)}{theirs}. Set this clock if it is wrong; else ask the operator to start the learner again "
        "where operator.key lies, which renews its certificate."
    )


def apart(here_ms: int, there_ms: int) -> str:
    """How this machine's clock differs from the learner's, to go on with after "is"."""
    return f"{ago(abs(there_ms - here_ms))} {'behind' if here_ms < there_ms else 'ahead of'} the learner's"

"""Keep the learner's certificate valid while it runs: renew it in time, warn in time, or end the run with a reason.

A node trusts a learner only while the operator's certificate for its key is valid. Certificates expire. If a learner
runs alone for months, or its clock is set, its nodes would otherwise stop trusting it.

    2/3 of its life over, or not valid now --operator.key is here--> renewed, sent with the next announcement
    9/10 of its life over -----------------operator.key is not here--> a warning, at most once in WARN_EVERY_S
    not valid now -------------------------operator.key is not here--> the run ends, admitted records are on disk

Invariants:

- The decision (`care`) is a pure function of the certificate, the time, and whether it can be renewed.
- A renewed certificate is valid from a day ago on, so it covers what was signed a moment ago.
- A certificate that cannot be written to the disk is still used. The next start makes another.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import Enum

import trio

from node.learner_role.shared.context import LearnerIdentity
from node.learner_role.shared.signals import LearnerSignals
from node.runtime.atomic_files import write_durably
from node.runtime.errors import RunError, UsageError
from node.runtime.events import EventLog
from node.state.learner_state import BACKDATED_MS, OPERATOR_KEY, LearnerStateDir, certify
from protocol.core.dates import moment
from protocol.core.genesis import LearnerCertificate, open_certificate

LOOK_EVERY_S = 1.0
"""Seconds within which a clock that was set is noticed. A look costs one comparison."""

RENEW_AT, WARN_AT = 2 / 3, 9 / 10
"""Fractions of a certificate's life. The last third of 90 days is a month to repair a full disk or a missing key."""

WARN_EVERY_S = 3600.0
"""Seconds between two warnings: often enough for an operator who reads the log once a day, and few enough to read."""


class Care(Enum):
    NOTHING = "nothing"
    RENEW = "renew"
    WARN = "warn"
    END = "end"


def care(word: LearnerCertificate, now_ms: int, *, renewable: bool) -> Care:
    """Return what the certificate `word` needs at `now_ms`. `renewable`: whether the operator's key is here."""
    valid = word.not_before_ms <= now_ms <= word.not_after_ms
    if renewable:
        return Care.NOTHING if valid and now_ms < _spent_ms(word, RENEW_AT) else Care.RENEW
    if not valid:
        return Care.END
    return Care.WARN if now_ms >= _spent_ms(word, WARN_AT) else Care.NOTHING


def _spent_ms(word: LearnerCertificate, share: float) -> float:
    """Return the time at which this fraction of the certificate's life is over."""
    issued_ms = min(word.not_before_ms + BACKDATED_MS, word.not_after_ms)
    return issued_ms + share * (word.not_after_ms - issued_ms)


@dataclass(kw_only=True)
class CertificateWatch:
    """Renews the certificate of `identity`, and emits the signal before `look` returns.

    It is built before the context, because it provides the context's `signing_ms`.
    """

    home: LearnerStateDir
    certificate_days: float
    identity: LearnerIdentity
    signals: LearnerSignals
    now_ms: Callable[[], int]
    events: EventLog
    _word: LearnerCertificate = field(init=False)
    _warned_s: float | None = None
    _refused: str = ""

    def __post_init__(self) -> None:
        self._word = open_certificate(self.identity.certificate, self.identity.authority)

    async def run(self, leave: Callable[[], Awaitable[None]]) -> None:
        """Check the certificate every LOOK_EVERY_S until cancelled.

        If it has expired, this calls `leave`, so that pending writes are completed, and raises RunError.
        """
        while True:
            try:
                self.look(self.now_ms())
            except RunError:
                await leave()
                raise
            await trio.sleep(LOOK_EVERY_S)

    def look(self, now_ms: int) -> None:
        """Ensure that the certificate covers `now_ms`, and renew it if that is due. Raises RunError if it cannot."""
        if care(self._word, now_ms, renewable=True) is Care.NOTHING:  # each signature asks, and a disk is slow
            return
        match care(self._word, now_ms, renewable=(self.home.root / OPERATOR_KEY).exists()):
            case Care.RENEW:
                self._renew(now_ms)
            case Care.WARN:
                self._warn(now_ms)
            case Care.END:
                raise RunError(self._explain_end(now_ms))

    def signing_ms(self) -> int:
        """Return the time now, for something that is about to be signed.

        The certificate in force covers this time, even if the clock was set a moment ago. Raises RunError if none does.
        """
        now_ms = self.now_ms()
        if trio.lowlevel.in_trio_run():  # a caller on a thread has asked here before, or `run` looks soon
            self.look(now_ms)
        return now_ms

    def _renew(self, now_ms: int) -> None:
        try:
            raw = certify(self.home.root, self.home.authority, self.home.learner, self.certificate_days, now_ms)
        except (UsageError, RunError) as error:  # the key here belongs to another swarm, or cannot be read
            self._refused = f" {error}"
            if care(self._word, now_ms, renewable=False) is Care.END:
                raise RunError(self._explain_end(now_ms)) from error
            self._warn(now_ms)
            return
        try:
            write_durably(self.home.root / "certificate", raw)
        except RunError as error:
            self.events.trouble(f"The renewed certificate is in use, but could not be written: {error}")
        self.identity.certificate, self._word = raw, open_certificate(raw, self.identity.authority)
        self._warned_s, self._refused = None, ""
        self.signals.certificate_renewed.emit(None)
        self.events.emit("certificate_renewed", until=moment(self._word.not_after_ms))

    def _warn(self, now_ms: int) -> None:
        now_s = trio.current_time()
        if self._warned_s is not None and now_s < self._warned_s + WARN_EVERY_S:
            return
        self._warned_s = now_s
        left_s = max(0, self._word.not_after_ms - now_ms) / 1000
        self.events.emit(
            "certificate_ends",
            until=moment(self._word.not_after_ms),
            left_s=round(left_s),
            text=f"The certificate of this learner's key ends at {moment(self._word.not_after_ms)}. From then on no "
            f"node trusts this learner. Put {OPERATOR_KEY} into {self.home.root}: the certificate is renewed at once, "
            f"while training goes on.{self._refused}",
        )

    def _explain_end(self, now_ms: int) -> str:
        path, word = self.home.root / "certificate", self._word
        if now_ms < word.not_before_ms:
            return (
                f"This machine's clock is probably wrong: it says {moment(now_ms)}, but {path} is valid only from "
                f"{moment(word.not_before_ms)} on, so no node would trust what is signed now. Set the clock, then "
                f"start again: the run continues from the newest checkpoint.{self._refused}"
            )
        return (
            f"{path} ended at {moment(word.not_after_ms)}, and it is {moment(now_ms)}: no node trusts this learner "
            f"any more. Put {OPERATOR_KEY} into {self.home.root}, or set the clock if it is wrong, then start again: "
            f"the run continues from the newest checkpoint.{self._refused}"
        )

"""What a drill's cheats do: each attack's name, its one sentence, and what it is after.

Pure. What always holds: an attack does one thing wrong and everything else as an honest node would, so that what is
found is found by that. The list is that of docs/threats.md.
"""

from __future__ import annotations

from enum import Enum

PATIENCE = 400
"""Rollouts that a cheat makes before it has shown what it can; then its place is taken by the next attack's."""

SLEEPS = 500
"""Rollouts that a sleeper makes honestly before it cheats."""

EARLY_GROUPS = 24
"""Groups that an early sleeper makes honestly before it cheats: three times as many as every newcomer has audited."""

SYBIL_GROUPS = 4
"""Groups that one key of a sybil delivers, before the next key comes: fewer than are audited of every newcomer. After
as many who signs for a key of its own comes with the next."""


class Harm(Enum):
    """What an attack is after."""

    TRAINING = "training"
    """Work that was not done, or rollouts that are not what they claim to be, and are trained on all the same."""
    CREDIT = "credit"
    """Credit for what was not given, the policy being what it would be without."""
    VERSIONS = "versions"
    """That others get new versions late, or wrong."""


class Attack(Enum):
    """How a cheat cheats, in the order in which cheats take turns; those that are about versions are relays', for all
    of the drill. The value is its name in options and reports; `said`: what it does, in one sentence; `rollouts`: how
    many it makes before its place is the next one's."""

    _value_: str
    said: str
    harm: Harm
    rollouts: int

    def __new__(cls, name: str, said: str, harm: Harm = Harm.TRAINING, rollouts: int = PATIENCE) -> Attack:
        attack = object.__new__(cls)
        attack._value_, attack.said, attack.harm, attack.rollouts = name, said, harm, rollouts
        return attack

    FABRICATED = "fabricated", "makes tokens up, with log probabilities that look right"
    SMALLER = "smaller", "generates with one layer less"
    INT8 = "int8", "generates with weights of 8 bits"
    FOUR_BIT = "4bit", "generates with weights of 4 bits"
    LAG_1 = "lag1", "generates with the version before, and claims the newest"
    LAG_3 = "lag3", "generates with a version 3 older, and claims the newest"
    LAG_10 = "lag10", "generates with a version 10 older, and claims the newest"
    RELABELLED = "relabelled", "as lag3, with the log probabilities that the newest gives"
    GREEDY = "greedy", "takes the likeliest token each time"
    TRUNCATED = "truncated", "ends every completion after two tokens"
    ENDLESS = "endless", "never ends a completion before its budget"
    CHERRY_PICKED = "cherry-picked", "gives back groups that were rewarded badly"
    BEST_VERSION = "best-version", "generates with every version that is admissible, and sends the best"
    COPIED = "copied", "sends what somebody else's lease was answered with"
    NEARLY_COPIED = "nearly-copied", "as copied, with one token changed"
    REPLAYED = "replayed", "sends records again that were admitted before"
    INFLATED = "inflated", "claims the highest reward for everything", Harm.CREDIT
    FORGED = "forged", "sends records whose signature is none"
    IMPERSONATED = "impersonated", "sends records in the name of another key"
    POISONED = "poisoned", "writes a text of its own after right answers"
    SYBIL = "sybil", "is greedy, and comes with a new key after every 4 groups"
    SLEEPER = "sleeper", "is honest for 500 rollouts, and greedy from then on", Harm.TRAINING, SLEEPS + PATIENCE
    MINTED = "minted", "signs for chunks that another key of its own never gave", Harm.CREDIT
    OVERCHARGING = "overcharging", "asks a hundred times the price, and claims hours that nobody saw", Harm.CREDIT
    BASE = "base", "generates with the version that the run began with, and claims the newest"
    RECYCLED = "recycled", "signs its first group again for each later lease"
    EARLY_SLEEPER = "early-sleeper", "is honest for 24 groups, and greedy from then on"
    CANNED = "canned", "sends one text for everything, with log probabilities that look right"
    COLD = "cold", "generates at 0.7 of the temperature that the lease asks for"
    WITHHELD_CHUNKS = "withheld-chunks", "says that it has every chunk of a version, and sends none", Harm.VERSIONS
    CORRUPT_CHUNKS = "corrupt-chunks", "flips a bit in every chunk that it passes on", Harm.VERSIONS

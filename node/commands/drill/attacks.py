"""List the attacks of a drill: each one's name, what it does in one sentence, and what it is after.

Pure. The list is that of docs/explain/threats.md.

Invariants:

- An attack does one thing wrong, and everything else as an honest node would. So a cheat is found by that one thing.
"""

from __future__ import annotations

from enum import Enum

TURN_ROLLOUTS = 400
"""Rollouts that a cheat makes in its turn: enough to show what it can do. Then the next attack takes its place."""

SLEEPS = 500
"""Rollouts that a sleeper makes honestly before it cheats."""

EARLY_GROUPS = 24
"""Groups that an early sleeper makes honestly before it cheats: three times those that are audited of a newcomer."""

SYBIL_GROUPS = 4
"""Groups that one key of a sybil delivers before the next key comes: fewer than are audited of every newcomer. The
minting cheat changes its key after as many groups."""


class Harm(Enum):
    """The aim of an attack."""

    TRAINING = "training"
    """Work that was not done, or rollouts that are not what they claim to be and are trained on nevertheless."""
    CREDIT = "credit"
    """Credit for something that was not given. The policy is the same as without the attack."""
    VERSIONS = "versions"
    """That other nodes get new versions late, or wrong ones."""


class Attack(Enum):
    """How a cheat cheats, in the order in which cheats take turns. Attacks on versions are relays for the whole drill.

    The value is the name in options and reports. `said`: what it does, in a sentence. `rollouts`: how many it makes
    before the next attack takes its place.
    """

    _value_: str
    said: str
    harm: Harm
    rollouts: int

    def __new__(cls, name: str, said: str, harm: Harm = Harm.TRAINING, rollouts: int = TURN_ROLLOUTS) -> Attack:
        attack = object.__new__(cls)
        attack._value_, attack.said, attack.harm, attack.rollouts = name, said, harm, rollouts
        return attack

    FABRICATED = "fabricated", "invents tokens, with log probabilities that look right"
    SMALLER = "smaller", "generates with one layer less"
    INT8 = "int8", "generates with 8-bit weights"
    FOUR_BIT = "4bit", "generates with 4-bit weights"
    LAG_1 = "lag1", "generates with the version before the newest, and claims the newest"
    LAG_3 = "lag3", "generates with a version that is 3 older, and claims the newest"
    LAG_10 = "lag10", "generates with a version that is 10 older, and claims the newest"
    RELABELLED = "relabelled", "does as lag3, and sends the log probabilities of the newest version"
    GREEDY = "greedy", "takes the likeliest token each time"
    TRUNCATED = "truncated", "ends every completion after two tokens"
    ENDLESS = "endless", "never ends a completion before its token limit"
    SELECTIVE = "cherry-picked", "returns the leases of groups with a low reward"
    BEST_VERSION = "best-version", "generates with every version that is admissible, and sends the best group"
    COPIED = "copied", "sends completions that another peer made for its lease"
    NEARLY_COPIED = "nearly-copied", "does as copied, with one token changed"
    REPLAYED = "replayed", "sends records again that were admitted before"
    INFLATED = "inflated", "claims the highest reward for everything", Harm.CREDIT
    FORGED = "forged", "sends records with an invalid signature"
    IMPERSONATED = "impersonated", "sends records in the name of another key"
    POISONED = "poisoned", "writes a text of its own after right answers"
    SYBIL = "sybil", "is greedy, and comes with a new key after every 4 groups"
    SLEEPER = "sleeper", "is honest for 500 rollouts, and then greedy", Harm.TRAINING, SLEEPS + TURN_ROLLOUTS
    MINTED = "minted", "signs receipts for chunks that its other key never sent", Harm.CREDIT
    OVERCHARGING = "overcharging", "asks a hundred times the price, and claims hours that it did not work", Harm.CREDIT
    BASE = "base", "generates with the first version of the run, and claims the newest"
    RECYCLED = "recycled", "signs its first group again for each later lease"
    EARLY_SLEEPER = "early-sleeper", "is honest for 24 groups, and then greedy"
    CANNED = "canned", "sends the same text for everything, with log probabilities that look right"
    COLD = "cold", "samples at 0.7 times the temperature that the lease asks for"
    WITHHELD_CHUNKS = "withheld-chunks", "says that it has every chunk of a version, and sends none", Harm.VERSIONS
    CORRUPT_CHUNKS = "corrupt-chunks", "flips a bit in every chunk that it relays", Harm.VERSIONS

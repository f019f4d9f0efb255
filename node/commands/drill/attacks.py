"""What a drill's cheats do: each attack's name, its one sentence, and what it is after.

Pure. What always holds: an attack does one thing wrong and everything else as an honest node would, so that what is
found is found by that. The list is that of docs/threats.md.
"""

from __future__ import annotations

from dataclasses import dataclass
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
    """How a cheat cheats. The value is its name in options and reports."""

    FABRICATED = "fabricated"
    SMALLER = "smaller"
    INT8 = "int8"
    FOUR_BIT = "4bit"
    LAG_1 = "lag1"
    LAG_3 = "lag3"
    LAG_10 = "lag10"
    RELABELLED = "relabelled"
    GREEDY = "greedy"
    TRUNCATED = "truncated"
    ENDLESS = "endless"
    CHERRY_PICKED = "cherry-picked"
    BEST_VERSION = "best-version"
    COPIED = "copied"
    NEARLY_COPIED = "nearly-copied"
    REPLAYED = "replayed"
    INFLATED = "inflated"
    FORGED = "forged"
    IMPERSONATED = "impersonated"
    POISONED = "poisoned"
    SYBIL = "sybil"
    SLEEPER = "sleeper"
    MINTED = "minted"
    OVERCHARGING = "overcharging"
    BASE = "base"
    RECYCLED = "recycled"
    EARLY_SLEEPER = "early-sleeper"
    CANNED = "canned"
    COLD = "cold"
    WITHHELD_CHUNKS = "withheld-chunks"
    CORRUPT_CHUNKS = "corrupt-chunks"


@dataclass(frozen=True, kw_only=True)
class About:
    """`said`: what it does, in one sentence; `rollouts`: how many it makes before its place is the next one's."""

    said: str
    harm: Harm = Harm.TRAINING
    rollouts: int = PATIENCE


ABOUT = {
    Attack.FABRICATED: About(said="makes tokens up, with log probabilities that look right"),
    Attack.SMALLER: About(said="generates with one layer less"),
    Attack.INT8: About(said="generates with weights of 8 bits"),
    Attack.FOUR_BIT: About(said="generates with weights of 4 bits"),
    Attack.LAG_1: About(said="generates with the version before, and claims the newest"),
    Attack.LAG_3: About(said="generates with a version 3 older, and claims the newest"),
    Attack.LAG_10: About(said="generates with a version 10 older, and claims the newest"),
    Attack.RELABELLED: About(said="as lag3, with the log probabilities that the newest gives"),
    Attack.GREEDY: About(said="takes the likeliest token each time"),
    Attack.TRUNCATED: About(said="ends every completion after two tokens"),
    Attack.ENDLESS: About(said="never ends a completion before its budget"),
    Attack.CHERRY_PICKED: About(said="gives back groups that were rewarded badly"),
    Attack.BEST_VERSION: About(said="generates with every version that is admissible, and sends the best"),
    Attack.COPIED: About(said="sends what somebody else's lease was answered with"),
    Attack.NEARLY_COPIED: About(said="as copied, with one token changed"),
    Attack.REPLAYED: About(said="sends records again that were admitted before"),
    Attack.INFLATED: About(said="claims the highest reward for everything", harm=Harm.CREDIT),
    Attack.FORGED: About(said="sends records whose signature is none"),
    Attack.IMPERSONATED: About(said="sends records in the name of another key"),
    Attack.POISONED: About(said="writes a text of its own after right answers"),
    Attack.SYBIL: About(said="is greedy, and comes with a new key after every 4 groups"),
    Attack.SLEEPER: About(said="is honest for 500 rollouts, and greedy from then on", rollouts=SLEEPS + PATIENCE),
    Attack.MINTED: About(said="signs for chunks that another key of its own never gave", harm=Harm.CREDIT),
    Attack.OVERCHARGING: About(
        said="asks a hundred times the price, and claims hours that nobody saw", harm=Harm.CREDIT
    ),
    Attack.BASE: About(said="generates with the version that the run began with, and claims the newest"),
    Attack.RECYCLED: About(said="signs its first group again for each later lease"),
    Attack.EARLY_SLEEPER: About(said="is honest for 24 groups, and greedy from then on"),
    Attack.CANNED: About(said="sends one text for everything, with log probabilities that look right"),
    Attack.COLD: About(said="generates at 0.7 of the temperature that the lease asks for"),
    Attack.WITHHELD_CHUNKS: About(said="says that it has every chunk of a version, and sends none", harm=Harm.VERSIONS),
    Attack.CORRUPT_CHUNKS: About(said="flips a bit in every chunk that it passes on", harm=Harm.VERSIONS),
}
"""In the order in which cheats take turns; those that are about versions are relays', for all of the drill."""

"""A Gymnasium environment that is text: a number from 0 to 9 is guessed, in four steps at most.

In swarm.toml beside this file:

    [task]
    spec = "gymnasium:number_world:NumberWorld-v0"
"""

import gymnasium
from gymnasium.spaces import Discrete, Text

TRIES = 4
LETTERS = "abcdefghijklmnopqrstuvwxyz"


class NumberWorld(gymnasium.Env):
    """Four letters name a game. "+" means that the number is larger than the guess, "-" that it is smaller."""

    observation_space = Text(max_length=16, charset=f"{LETTERS}guess:=+-\n")
    action_space = Discrete(10)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.number = int(self.np_random.integers(10))
        name = "".join(LETTERS[place] for place in self.np_random.integers(26, size=4))
        return f"guess:{name}=", {}

    def step(self, action):
        right = action == self.number
        return "+" if self.number > action else "-", float(right), bool(right), False, {}


gymnasium.register("NumberWorld-v0", entry_point=NumberWorld, max_episode_steps=TRIES)

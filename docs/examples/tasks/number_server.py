"""The same game behind a server of OpenEnv, which Volery starts by itself.

In swarm.toml beside this file:

    [task]
    spec = "openenv:number_server:app"

A server that runs elsewhere (`uvicorn number_server:app`) is named by its address: "openenv:http://HOST:8000".
"""

import random
import uuid

from openenv.core.env_server import Action, Environment, Observation, State, create_app

TRIES = 4
DIGITS = list("0123456789")


class Guess(Action):
    """What the policy says: the one field of text, so it needs no name in the spec."""

    guess: str


class Told(Observation):
    """What the policy reads: the one field, so it is read as it is."""

    text: str


class NumberEnvironment(Environment):
    """Four letters name a game. "+" means that the number is larger than the guess, "-" that it is smaller."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        super().__init__()
        self.number, self.game = 0, State()

    def reset(self, seed=None, episode_id=None, **options):
        dice = random.Random(seed)
        self.number = dice.randrange(10)
        self.game = State(episode_id=episode_id or str(uuid.uuid4()))
        return Told(text=f"guess:{''.join(dice.choices('abcdefghijklmnopqrstuvwxyz', k=4))}=")

    def step(self, action, timeout_s=None, **options):
        self.game.step_count += 1
        if action.guess == str(self.number):
            return Told(text="right", reward=1.0, done=True)
        is_larger = action.guess in DIGITS[: self.number]
        return Told(text="+" if is_larger else "-", reward=0.0, done=self.game.step_count == TRIES)

    @property
    def state(self):
        return self.game


app = create_app(NumberEnvironment, Guess, Told, max_concurrent_envs=256)

"""Background work takes its share of an engine's time, for any number of requests, and no more."""

from __future__ import annotations

import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from node.learner_role.trust.engine_budget import ROUTINE_SHARE, EngineBudget

uses = st.lists(st.tuples(st.floats(0.01, 30.0), st.booleans()), min_size=5, max_size=60)


@settings(deadline=None)
@given(share=st.sampled_from([0.01, 0.25, 1.0]), uses=uses)
def test_all_uses_are_a_share_of_the_time_and_routine_ones_a_small_one(
    share: float, uses: list[tuple[float, bool]]
) -> None:
    """Shares are fractions of all time until the next use may begin."""

    async def use_it() -> None:
        time, began = EngineBudget(share=share), trio.current_time()
        spent = routinely = 0.0
        for seconds, routine in uses:
            await trio.sleep(time.rest_s(routine=routine))
            assert time.rest_s(routine=routine) < 1e-6, "but for rounding"
            await trio.sleep(seconds)
            time.spend(seconds, routine=routine)
            spent, routinely = spent + seconds, routinely + seconds * routine
        past = trio.current_time() - began
        assert spent <= share * (past + time.rest_s()) * (1 + 1e-6)
        assert routinely <= min(share, ROUTINE_SHARE) * (past + time.rest_s(routine=True)) * (1 + 1e-6)

    trio.run(use_it, clock=MockClock(autojump_threshold=0))


def test_what_two_asked_for_at_once_is_rested_from_by_both() -> None:
    """Each asked whether it may begin, and one of them had to wait for the other to be done with the engine."""

    async def use_it() -> None:
        time = EngineBudget(share=0.1)
        await trio.sleep(10.0)
        time.spend(10.0)
        await trio.sleep(5.0)
        time.spend(5.0)
        assert time.rest_s() == 150.0 - 15.0

    trio.run(use_it, clock=MockClock(autojump_threshold=0))

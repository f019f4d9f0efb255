"""Check every promise of the engine interface, for engines with and without a model.

    async with open_engine() as engine:
        await check_engine(engine, subject)

`subject` supplies what a check cannot invent: directories that this engine can load, and how to crash it.

Invariants:

- Checks use the interface alone.
- Checks leave the engine in service for the next one.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import trio
import trio.testing

from node.engine.interface import (
    Claim,
    EngineCrashed,
    EngineRefused,
    FinishReason,
    Generation,
    GenerationRequest,
    InstalledVersion,
    InstallFailed,
    PolicyEngine,
    StreamingEngine,
    Verified,
    VerifyingEngine,
)
from protocol.core.ids import ManifestHash, PolicyVersion

Score = Callable[[Sequence[tuple[tuple[int, ...], tuple[int, ...]]], float], Awaitable[list[tuple[float, ...]]]]
"""(prompt, completion) pairs and a temperature -> log_softmax(logits / T) of every completion token."""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """The inputs of the checks: directories, a way to crash the engine, a scorer.

    `first` and `second`: loadable directories with different weights. `bad`: directories that must be refused. The
    model has ids 0..vocab_size-1. `crash` ends the engine's process, or pretends to, during the calls in flight.
    `score`, if the engine has a model: logprobs within `tolerance` of the behaviour logprobs.
    """

    first: Path
    second: Path
    bad: tuple[Path, ...]
    vocab_size: int
    crash: Callable[[], Awaitable[None]]
    score: Score | None = None
    tolerance: float = 1e-4


Check = Callable[[PolicyEngine, Subject], Awaitable[None]]

FIRST = InstalledVersion(name=PolicyVersion(incarnation=1, version=0), manifest=ManifestHash(bytes([1]) * 32))
SECOND = InstalledVersion(name=PolicyVersion(incarnation=1, version=1), manifest=ManifestHash(bytes([2]) * 32))
BAD = InstalledVersion(name=PolicyVersion(incarnation=1, version=2), manifest=ManifestHash(bytes([3]) * 32))


async def check_engine(engine: PolicyEngine, subject: Subject) -> None:
    """Run every check on a newly opened engine. Raises AssertionError with the check's name and finding."""
    await check_nothing_installed(engine)
    await engine.install(FIRST, subject.first)
    for check in CHECKS:
        try:
            await check(engine, subject)
        except Exception as error:  # any exception is raised again, with the check's name
            error.add_note(f"in {check.__name__}")
            raise


async def check_streams(engine: StreamingEngine, subject: Subject) -> None:
    """Run the check for an engine that hands out tokens early; installs what it needs."""
    await engine.install(FIRST, subject.first)
    await check_streaming(engine, subject)


async def check_nothing_installed(engine: PolicyEngine) -> None:
    """Check that no version is installed at first, and that generating is refused for this reason."""
    assert engine.installed is None
    assert await _refusal(engine, _request(prompt=(1,))) == "nothing_installed"


async def check_rest(engine: PolicyEngine, subject: Subject) -> None:
    """Check that nothing is installed after a rest, and that the engine works as before after waking and installing."""
    [before] = await engine.generate([_request()])
    await engine.rest()
    assert engine.installed is None
    await engine.rest()
    engine.wake()
    engine.wake()
    await engine.install(FIRST, subject.first)
    assert engine.installed == FIRST
    [after] = await engine.generate([_request()])
    assert after.tokens == before.tokens


async def check_order_and_spans(engine: PolicyEngine, subject: Subject) -> None:
    """Check that results come in the order of the requests, each with its tokens, its logprobs, and the one version
    that made all of them."""
    requests = _mixed(subject)
    generations = await engine.generate(requests)
    assert len(generations) == len(requests)
    alone = [(await engine.generate([request]))[0] for request in requests]
    for request, generation, expected in zip(requests, generations, alone, strict=True):
        assert generation.tokens == expected.tokens, f"{request} depends on what else is in its batch"
        assert _close(generation.logprobs, expected.logprobs, subject.tolerance)
        assert len(generation.logprobs) == len(generation.tokens) <= request.max_new_tokens
        assert all(0 <= token < subject.vocab_size for token in generation.tokens)
        assert all(-math.inf < logprob <= 0 for logprob in generation.logprobs)
        assert [(span.start, span.end, span.version) for span in generation.spans] == [
            (0, len(generation.tokens), FIRST)
        ]
    assert await engine.generate([]) == []


async def check_streaming(engine: StreamingEngine, subject: Subject) -> None:
    """Check that tokens handed out early are those of the results, in order, with their logprobs."""
    requests = _mixed(subject)
    told: dict[int, list[tuple[int, float]]] = {}

    def hear(place: int, start: int, tokens: Sequence[int], logprobs: Sequence[float]) -> None:
        mine = told.setdefault(place, [])
        assert start == len(mine), "no completion was restarted here"
        mine += zip(tokens, logprobs, strict=True)

    generations = await engine.generate_streaming(requests, hear)
    for place, generation in enumerate(generations):
        assert tuple(token for token, _ in told[place]) == generation.tokens
        assert _close([logprob for _, logprob in told[place]], generation.logprobs, subject.tolerance)
    assert await engine.generate_streaming([], hear) == []


async def check_shares_of_time(engine: PolicyEngine, subject: Subject) -> None:
    """Check that the completions' seconds add up to at most the time that the caller waited."""
    started = trio.current_time()
    seconds = [g.generation_s for g in await engine.generate(_mixed(subject))]
    assert min(seconds) >= 0
    assert sum(seconds) <= (trio.current_time() - started) * 1.001 + 1e-3


async def check_seeds(engine: PolicyEngine, subject: Subject) -> None:
    """Check that all 64 bits of the seed determine a sampled completion, and none of them a greedy one."""
    seeds = [0, 1, 2**63 - 1, 2**63, 2**64 - 1, 1]
    sampled = [g.tokens for g in await engine.generate([_request(seed=seed) for seed in seeds])]
    assert sampled[5] == sampled[1]
    assert len(set(sampled)) == 5
    greedy = await engine.generate([_request(seed=seed, greedy=True) for seed in seeds])
    assert len({g.tokens for g in greedy}) == 1
    assert (
        len({g.tokens for g in await engine.generate([_request(greedy=True, temperature=t) for t in (0.1, 9.0)])}) == 1
    )


async def check_stops_and_budget(engine: PolicyEngine, subject: Subject) -> None:
    """Check that a stop id stays as the last token and ends the completion, and that the budget ends it otherwise. The
    tokens before it do not change."""
    [free] = await engine.generate([_request(max_new_tokens=12)])
    assert len(free.tokens) == 12
    assert free.finish is FinishReason.LENGTH
    stop = free.tokens[5]
    expected = free.tokens[: free.tokens.index(stop) + 1]
    requests = [_request(max_new_tokens=12, stop_ids=stops) for stops in (frozenset({stop}), frozenset[int]())]
    stopped, unstopped = await engine.generate([*requests])
    assert stopped.tokens == expected
    assert stopped.finish is FinishReason.STOP
    assert unstopped.tokens == free.tokens
    [short] = await engine.generate([_request(max_new_tokens=len(expected), stop_ids=frozenset({stop}))])
    assert short.finish is FinishReason.STOP, "a stop id as the last token of the budget is a stop"
    [one] = await engine.generate([_request(max_new_tokens=1)])
    assert one.tokens == free.tokens[:1]


async def check_logprobs(engine: PolicyEngine, subject: Subject) -> None:
    """Check that behaviour logprobs are those of scoring prompt and completion: at the request's temperature, or at 1
    when greedy."""
    if subject.score is None:
        return
    for temperature, greedy in ((1.0, False), (0.5, False), (1.0, True)):
        requests = [replace(request, temperature=temperature, greedy=greedy) for request in _mixed(subject)]
        generations = await engine.generate(requests)
        pairs = [(request.prompt, g.tokens) for request, g in zip(requests, generations, strict=True)]
        for scored, generation in zip(await subject.score(pairs, temperature), generations, strict=True):
            assert _close(generation.logprobs, scored, subject.tolerance), f"temperature {temperature}, greedy {greedy}"


async def check_verifying(engine: VerifyingEngine, subject: Subject) -> None:
    """Check that an engine finds no gap in its own completions, whole or in part, with the logprobs that it reported,
    and a gap with another seed, version or token. Not among CHECKS, since not every engine can verify."""
    requests = [replace(request, greedy=False) for request in _mixed(subject)]
    generations = await engine.generate(requests)
    claims = [
        Claim(prompt=r.prompt, tokens=g.tokens, seed=r.seed, temperature=r.temperature)
        for r, g in zip(requests, generations, strict=True)
    ]
    for verified, generation in zip(await engine.verify(claims), generations, strict=True):
        assert len(verified.gaps) == len(generation.tokens)
        assert max(verified.gaps) <= 2 * subject.tolerance
        assert _close(verified.logprobs, generation.logprobs, subject.tolerance)
        assert len(verified.leads) == len(verified.sizes) == len(generation.tokens)
        assert min(verified.leads) >= 0
    long = max(claims, key=lambda claim: len(claim.tokens))
    cut = len(long.tokens) // 2
    later = replace(long, prompt=(*long.prompt, *long.tokens[:cut]), tokens=long.tokens[cut:], start=cut)
    at_place, elsewhere = await engine.verify([later, replace(later, start=0)])
    assert max(at_place.gaps) <= 2 * subject.tolerance, "the rest of a resumed completion is drawn at its position"
    assert max(elsewhere.gaps) > 2 * subject.tolerance
    [part] = await engine.verify([replace(claims[-1], tokens=claims[-1].tokens[:2])])
    assert len(part.gaps) == 2
    assert max(part.gaps) <= 2 * subject.tolerance
    assert await engine.verify([]) == []
    [nothing] = await engine.verify([replace(claims[0], tokens=())])
    assert nothing.gaps == nothing.logprobs == nothing.leads == ()
    others = await engine.verify([replace(claim, seed=claim.seed ^ 1 << 63) for claim in claims])
    assert _share_above(others, 2 * subject.tolerance) > 0.5, "another seed draws the same tokens"
    for claim, one in zip(claims, others, strict=True):
        [alone] = await engine.verify([replace(claim, seed=claim.seed ^ 1 << 63)])
        assert _close(one.leads, alone.leads, 4 * subject.tolerance), "each claim has its own leads"
        assert all(gap == 0 or gap >= lead for gap, lead in zip(one.gaps, one.leads, strict=True))
    await engine.install(SECOND, subject.second)
    assert _share_above(await engine.verify(claims), 2 * subject.tolerance) > 0.2, "another version draws the same"
    await engine.install(FIRST, subject.first)


def _share_above(verified: Sequence[Verified], gap: float) -> float:
    gaps = [one for each in verified for one in each.gaps]
    return sum(one > gap for one in gaps) / len(gaps)


async def check_interrupting(engine: PolicyEngine, subject: Subject) -> None:
    """Check that an interrupted call returns the tokens so far, and that generating from there gives the rest. Later
    calls are served in full; an interrupt without calls does nothing."""
    await engine.interrupt()
    requests = [_request(seed=seed, max_new_tokens=96) for seed in range(8)]
    whole = await engine.generate(requests)
    begun: list[Generation] = []

    async def generate() -> None:
        begun.extend(await engine.generate(requests))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(generate)
        await trio.testing.wait_all_tasks_blocked()
        await engine.interrupt()
    rests = []
    for request, part, expected in zip(requests, begun, whole, strict=True):
        made = len(part.tokens)
        assert part.tokens == expected.tokens[:made], "an interrupted call returned other tokens than a full one"
        assert _close(part.logprobs, expected.logprobs[:made], subject.tolerance)
        assert [(span.start, span.end, span.version) for span in part.spans] == ([(0, made, FIRST)] if made else [])
        assert part.finish is (FinishReason.PART if made < len(expected.tokens) else FinishReason.LENGTH)
        # Some engines finish before the interrupt reaches them.
        made = min(made, 40)
        rests.append((made, replace(request, prompt=(*request.prompt, *expected.tokens[:made]), start=made)))
    for (made, _), rest, expected in zip(rests, await engine.generate([one for _, one in rests]), whole, strict=True):
        assert rest.tokens[: 96 - made] == expected.tokens[made:], "the rest differs from that of an uninterrupted call"
        assert _close(rest.logprobs[: 96 - made], expected.logprobs[made:], subject.tolerance)


async def check_bad_requests(engine: PolicyEngine, subject: Subject) -> None:
    """Check that a bad request is refused alone: another call at the same time is served."""
    bad = [
        _request(prompt=()),
        _request(prompt=(subject.vocab_size,)),
        _request(max_new_tokens=0),
        _request(temperature=0.0),
    ]
    kinds: list[str | None] = []
    served: list[Generation] = []

    async def refused(request: GenerationRequest) -> None:
        kinds.append(await _refusal(engine, request))

    async def serve() -> None:
        served.extend(await engine.generate([_request()]))

    async with trio.open_nursery() as nursery:
        for request in bad:
            nursery.start_soon(refused, request)
            nursery.start_soon(serve)
    assert kinds == ["bad_request"] * len(bad)
    assert len({generation.tokens for generation in served}) == 1


async def check_concurrent_calls(engine: PolicyEngine, subject: Subject) -> None:
    """Check that simultaneous calls each get their own results."""
    requests = _mixed(subject)
    expected = [g.tokens for g in await engine.generate(requests)]
    found: dict[int, tuple[int, ...]] = {}

    async def generate(i: int) -> None:
        [generation] = await engine.generate([requests[i]])
        found[i] = generation.tokens

    async with trio.open_nursery() as nursery:
        for i in range(len(requests)):
            nursery.start_soon(generate, i)
    assert [found[i] for i in range(len(requests))] == expected


async def check_install(engine: PolicyEngine, subject: Subject) -> None:
    """Check that later tokens come from the installed version, there and back again, and that a directory that cannot
    be loaded changes nothing."""
    request = _request(greedy=True)
    [before] = await engine.generate([request])
    await engine.install(SECOND, subject.second)
    assert engine.installed == SECOND
    [other] = await engine.generate([request])
    assert other.spans[0].version == SECOND
    assert not _close(other.logprobs, before.logprobs, subject.tolerance), (
        "the second version's weights are the first's"
    )
    for directory in subject.bad:
        assert await _install_fails(engine, directory), f"{directory} was installed"
        assert engine.installed == SECOND
        [still] = await engine.generate([request])
        assert (still.tokens, still.logprobs, still.spans) == (other.tokens, other.logprobs, other.spans)
    await engine.install(FIRST, subject.first)
    [after] = await engine.generate([request])
    assert (after.tokens, after.logprobs, after.spans) == (before.tokens, before.logprobs, before.spans)


async def check_release(engine: PolicyEngine, subject: Subject) -> None:
    """Check that a release frees only spare memory: version and completions stay the same."""
    expected = [g.tokens for g in await engine.generate(_mixed(subject))]
    await engine.release()
    assert engine.installed == FIRST
    assert [g.tokens for g in await engine.generate(_mixed(subject))] == expected


async def check_cancelled_calls(engine: PolicyEngine, subject: Subject) -> None:
    """Check that a caller may leave at any time: later calls are served as if it had not been there."""
    expected = [g.tokens for g in await engine.generate(_mixed(subject))]
    for num_checkpoints in range(6):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(engine.generate, _mixed(subject))
            nursery.start_soon(engine.install, FIRST, subject.first)
            for _ in range(num_checkpoints):
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
        assert [g.tokens for g in await engine.generate(_mixed(subject))] == expected
    assert engine.installed == FIRST


async def check_crash(engine: PolicyEngine, subject: Subject) -> None:
    """Check that a crash fails the calls in flight, and that later calls are served from the same version, after the
    owner has been notified."""
    expected = [g.tokens for g in await engine.generate(_mixed(subject))]
    outcomes: list[str] = []
    engine.restarted.subscribe(lambda _: outcomes.append(f"restarted with {engine.installed == FIRST}"))

    async def generate_until_crash() -> None:
        # Long enough to be in flight when the crash comes; if it finishes first, it is requested again.
        try:
            while True:
                await engine.generate([_request(seed=seed, max_new_tokens=256) for seed in range(32)])
        except EngineCrashed:
            outcomes.append("crashed")

    async with trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(generate_until_crash)
        await trio.testing.wait_all_tasks_blocked()
        await subject.crash()
    generations = await engine.generate(_mixed(subject))
    assert sorted(outcomes) == ["crashed", "crashed", "restarted with True"]
    assert [g.tokens for g in generations] == expected
    assert engine.installed == generations[0].spans[0].version == FIRST


CHECKS: tuple[Check, ...] = (
    check_order_and_spans,
    check_rest,
    check_shares_of_time,
    check_seeds,
    check_stops_and_budget,
    check_logprobs,
    check_bad_requests,
    check_concurrent_calls,
    check_install,
    check_release,
    check_interrupting,
    check_cancelled_calls,
    check_crash,
)


def _request(
    *,
    prompt: tuple[int, ...] = (5, 1, 4),
    seed: int = 7,
    temperature: float = 1.0,
    max_new_tokens: int = 8,
    stop_ids: frozenset[int] = frozenset(),
    greedy: bool = False,
) -> GenerationRequest:
    return GenerationRequest(
        prompt=prompt,
        seed=seed,
        temperature=temperature,
        max_new_tokens=max_new_tokens,
        stop_ids=stop_ids,
        greedy=greedy,
    )


def _mixed(subject: Subject) -> list[GenerationRequest]:
    """Return groups of several prompts, lengths, temperatures, budgets and stops, greedy and sampled, interleaved."""
    return [
        _request(
            prompt=tuple((prompt + i) % subject.vocab_size for i in range(1 + 3 * prompt)),
            seed=1000 * member + prompt,
            temperature=(0.5, 1.0, 1.7)[member % 3],
            max_new_tokens=3 + 4 * member,
            stop_ids=frozenset({prompt, member + 10, 30}),
            greedy=member == 3,
        )
        for member in range(4)
        for prompt in range(4)
    ]


def _close(left: Sequence[float], right: Sequence[float], tolerance: float) -> bool:
    return len(left) == len(right) and all(abs(a - b) <= tolerance for a, b in zip(left, right, strict=True))


async def _refusal(engine: PolicyEngine, request: GenerationRequest) -> str | None:
    try:
        await engine.generate([request])
    except EngineRefused as refusal:
        return refusal.kind
    return None


async def _install_fails(engine: PolicyEngine, directory: Path) -> bool:
    try:
        await engine.install(BAD, directory)
    except InstallFailed:
        return True
    return False

"""Read configuration files; report every mistake with file, section, key and next step."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from learner.rollouts.overlong import Overlong
from learner.trainer_api.requests import Load, Lora
from node.config.error_messages import NAMES_ELSEWHERE
from node.config.loader import read_node_config, read_swarm_config, replaced
from node.config.node_config import NodeConfig, NodeNetworkSection
from node.config.swarm_config import LearnSection, ModelSection, SwarmConfig, TrainerSection, mode_of
from node.learner_role.training.trainer_process import TRAINER, launch_command, load_request
from node.runtime.errors import UsageError
from node.tasks.tokenizer import TextCodec, write_character_tokenizer
from node.tasks.ways.model_ways import read_ways
from protocol.core.limits import MAX_WORK_BYTES

COMING_FROM = Path(__file__).parents[3] / "docs" / "operate" / "coming-from.md"

SMALLEST = """\
[swarm]
name = "a swarm"
[model]
directory = "model"
[task]
spec = "reverse"
[learn]
steps = 5
"""


def swarm_file(tmp_path: Path, text: str = SMALLEST) -> Path:
    path = tmp_path / "swarm.toml"
    path.write_text(text, encoding="utf-8")
    return path


def refused(path: Path, text: str) -> str:
    """Return the message about a swarm.toml, without the file's name, which comes first."""
    with pytest.raises(UsageError) as caught:
        read_swarm_config(swarm_file(path, text))
    said = str(caught.value)
    assert said.startswith(str(path / "swarm.toml"))
    assert "\n" not in said
    return said.removeprefix(str(path / "swarm.toml")).lstrip(": ")


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ("chat_template_kwargs = { messages = 1 }", "the conversation gives the template its messages. Remove"),
        ("chat_template_kwargs = { day = 2026-01-01 }", "holds a value that is no text, number"),
        ("chat_template_kwargs = { heat = [nan] }", "holds a value that is no text, number"),
        ("stop = ['']", "[model] stop"),
        ("stop_ids = [-1]", "[model] stop_ids"),
        ('tool_format = "xml"', "[model] tool_format"),
        ('chat_template = ""', "[model] chat_template"),
    ],
)
def test_ways_of_a_model_that_cannot_be_are_refused(tmp_path: Path, keys: str, words: str) -> None:
    assert words in refused(tmp_path, SMALLEST.replace('directory = "model"', f'directory = "model"\n{keys}'))


def test_a_template_lies_beside_the_file(tmp_path: Path) -> None:
    text = SMALLEST.replace('directory = "model"', 'directory = "model"\nchat_template = "own.jinja"')
    assert read_swarm_config(swarm_file(tmp_path, text)).model.chat_template == str(tmp_path / "own.jinja")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[swarm]\nname = "x"\nstate = "a\\u0000b"\n', "[swarm] state holds a NUL character"),
        ('[task]\nspec = "sort"\nmixture = [{ spec = "a\\u0000" }]\n', "[task] mixture spec holds a NUL character"),
        (f"[learn]\nsteps = {'[' * 5000}1{']' * 5000}\n", "its brackets are nested too deeply"),
    ],
)
def test_what_no_path_and_no_reader_can_bear_is_said(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "swarm.toml").write_text(text)
    with pytest.raises(UsageError) as caught:
        read_swarm_config(tmp_path / "swarm.toml")
    assert words in str(caught.value)


def test_a_home_of_nobody_is_refused_where_it_stands(tmp_path: Path) -> None:
    (tmp_path / "swarm.toml").write_text(
        '[swarm]\nname = "x"\n[model]\ndirectory = "~nobody-here/m"\n[task]\nspec = "sort"\n[learn]\nsteps = 1\n'
    )
    with pytest.raises(
        UsageError, match=r"swarm\.toml: \[model\] directory: ~nobody-here/m: this machine has no user 'nobody-here'"
    ):
        read_swarm_config(tmp_path / "swarm.toml")


def test_paths_are_relative_to_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    config = read_swarm_config(swarm_file(tmp_path))
    assert config.swarm.state == str(tmp_path / "state")
    assert config.model.directory == str(tmp_path / "model")
    text = SMALLEST.replace('"model"', '"~/models/one"').replace("[model]", 'state = "/srv/state"\n[model]')
    config = read_swarm_config(swarm_file(tmp_path, text))
    assert (config.swarm.state, config.model.directory) == ("/srv/state", "/home/someone/models/one")


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("steps = 5", "steps = 0", "[learn] steps: expected `int` >= 1."),
        ("steps = 5", 'steps = "5"', "[learn] steps: expected `int`, got `str`."),
        ("steps = 5", "steps = true", "[learn] steps: expected `int`, got `bool`."),
        ("steps = 5", "", "[learn] the key 'steps' is missing."),
        (
            "steps = 5",
            'steps = 5\nmode = "synchronous"',
            "[learn] mode: invalid enum value 'synchronous'; choose one of 'async', 'sequential'.",
        ),
        ("steps = 5", "steps = 5\nstaleness = -1", "[learn] staleness: expected `int` >= 0."),
        ("steps = 5", "steps = 5\ntemperature = 0", "[learn] temperature: expected `float` >= 1e-20."),
        ("steps = 5", "steps = 5\ntemperature = nan", "[learn] temperature: expected `float` >= 1e-20."),
        ("steps = 5", "steps = 5\ngroup_size = 1", "[learn] group_size: expected `int` >= 2."),
        ("steps = 5", "steps = 5\nmax_batches_ahead = 0.5", "[learn] max_batches_ahead: expected `float` >= 1.0."),
        ("steps = 5", "steps = 5\nseed = 4294967296", "[learn] seed: expected `int` <= 4294967295."),
        (
            "[learn]",
            "[trainer]\nlearning_rate = inf\n[learn]",
            "[trainer] learning_rate: expected `float` <= 1000000000",
        ),
        ("[learn]", "[trainer]\nbeta1 = 1.0\n[learn]", "[trainer] beta1: expected `float` < 1.0."),
        (
            "[learn]",
            '[trainer]\nobjective = "ppp"\n[learn]',
            "[trainer] objective: invalid enum value 'ppp'; choose one of 'topr', 'grpo', 'dr_grpo', 'dapo', 'gspo',",
        ),
        (
            "[learn]",
            "[lern]",
            "there is no section [lern] (did you mean 'learn'?). Known sections and keys: swarm, network, model, ",
        ),
        ("[learn]", "lern = 5\n[learn]", "[task] there is no key 'lern'"),
        (
            "steps = 5",
            "steps = 5\nnum_generations = 8",
            "[learn] there is no key 'num_generations'; TRL's num_generations is [learn] group_size here. Known keys: ",
        ),
        (
            "steps = 5",
            "steps = 5\nstalenes = 1",
            "[learn] there is no key 'stalenes' (did you mean 'staleness'?). Known keys: steps, mode, stale",
        ),
        ('spec = "reverse"', "", "[task] needs either spec, for one task, or a [[task.mixture]] table for each"),
        ('spec = "reverse"', 'spec = "reverse"\n[[task.mixture]]\nspec = "sort"', "[task] needs either spec"),
        (
            'spec = "reverse"',
            '[[task.mixture]]\nspec = "sort"\n[[task.mixture]]\nspec = "sort:digits=3"',
            "[[task.mixture]] has 2 tasks called 'sort'. Give each a name",
        ),
        (
            'spec = "reverse"',
            '[[task.mixture]]\nspec = "sort"\nwheight = 2',
            "[task] mixture[0]: there is no key 'wheight' (did you mean 'weight'?). Known keys: spec, weight, name",
        ),
        ('spec = "reverse"', '[[task.mixture]]\nspec = "sort"\nweight = 0', "[task] mixture[0].weight: expected `fl"),
        (
            "[learn]",
            "[curriculum]\nmin_pass_rate = 0.5\nmax_pass_rate = 0.5\n[learn]",
            "[curriculum] min_pass_rate = 0.5 leaves nothing below max_pass_rate",
        ),
        (
            "[learn]",
            "[evaluate]\nsamples = 4\npass_at_k = [1, 8]\n[learn]",
            "[evaluate] pass_at_k = 8 is more than samples = 4",
        ),
        ("[learn]", "[cost]\nreference_per_hour = 1\n[learn]", "[cost] reference_tokens_per_s is missing: a machine"),
        ("[learn]", "[cost]\nreference_tokens_per_s = 1\n[learn]", "[cost] reference_per_hour is missing: a machine"),
        ("[learn]", '[cost]\nreference = "x"\n[learn]', "[cost] reference = 'x' has neither price nor speed. Add"),
        ("[learn]", "[cost]\nper_kwh = -1\n[learn]", "[cost] per_kwh: expected `float` >= 0.0"),
        ("[learn]", "[evaluate]\npass_at_k = [0]\n[learn]", "[evaluate] pass_at_k[0]: expected `int` >= 1"),
        ("[learn]", "[evaluate]\nkv_cache_gb = 0\n[learn]", "[evaluate] kv_cache_gb: expected `float` > 0"),
        (
            "[learn]",
            '[evaluate]\nkv_cache_gb = "4"\n[learn]',
            "[evaluate] kv_cache_gb: expected `float`, got `str`. Wr",
        ),
        *(
            (
                "[learn]",
                f'[evaluate]\ndevice = "{wrong}"\n[learn]',
                "[evaluate] device: expected `str` matching regex '^(auto|cpu|mps|cuda(:[0-9]{1,2})?)$'. "
                'Write "auto", "cpu", "mps", "cuda", or one of several GPUs: "cuda:1".',
            )
            for wrong in ("", "gpu", "cuda:", "cuda:x", "cuda:-1", "cpu:0", "cuda:0 ")
        ),
        ("[learn]", "[offline]\nshare = 0\n[learn]", "[offline] share: expected `float` > 0.0."),
        ("[learn]", '[offline]\npath = "x"\nshare = 0.001\n[learn]', "[offline] share = 0.001 of the 256 completions"),
        (
            "[learn]",
            '[trainer]\nobjective = "dpo"\n[learn]',
            '[trainer] objective = "dpo" learns from pairs, and [learn] group_size = 16. Set it to 2',
        ),
        (
            "[learn]",
            '[trainer]\nadvantage = "preference"\n[learn]',
            '[trainer] advantage = "preference" learns from pairs, and [learn] group_size = 16. Set it to 2',
        ),
        (
            "[learn]",
            '[trainer]\nadvantage = "mean"\n[learn]',
            "[trainer] advantage: invalid enum value 'mean'; choose one of 'group_mean', 'group_mean_std', 'leave_one",
        ),
        ("[learn]", "[[learn]]", "[learn] expected a table, got a list. Write [learn]."),
        (
            "steps = 5",
            "steps = 1e3",
            "[learn] steps: expected `int`, got `float`. Write a whole number, such as 1000, without",
        ),
        (
            "[learn]",
            '[trainer]\nkl_coefficient = "0"\n[learn]',
            "[trainer] kl_coefficient: expected `float`, got `str`. Write a number, such as 0.5",
        ),
        ("[learn]", "[trainer]\ncompile = 1\n[learn]", "[trainer] compile: expected `bool`, got `int`. Write true or"),
        ("[learn]", "[metrics]\nwandb = true\n[learn]", "[metrics] wandb: expected `str`, got `bool`. Write text in"),
        (
            "[learn]",
            "[evaluate]\npass_at_k = 8\n[learn]",
            "[evaluate] pass_at_k: expected a list, got `int`. Write a list in brack",
        ),
        (
            'spec = "reverse"',
            'mixture = {spec = "sort"}',
            "[task] mixture: expected a list, got a table. Write [[task.mixture]], once for each.",
        ),
        ("[learn]", "[trainer]\nsteps = 5\n[learn]", "[trainer] there is no key 'steps'; [learn] has one. Known keys"),
        ("[task]", 'task = "sort"\n[offline]', "[model] there is no key 'task'; it is a section, [task]. Known keys"),
        ("[learn]", "[network]\nlisten = []\n[learn]", "[network] listen = [] lets no volunteer reach this learner"),
        ("[model]", 'state = "model/deep"\n[model]', "[swarm] state: "),
        *(
            (
                "[learn]",
                f'[trainer]\nmachines = 2\nrendezvous = "{wrong}"\n[learn]',
                "[trainer] machines = 2 need rendezvous, where the others reach this one",
            )
            for wrong in ("", "here", "here:0", "here:65536", ":80")
        ),
        ("[learn]\nsteps = 5", "", "the key 'learn' is missing."),
        ("[model]", "[network]\nlisten = [1]\n[model]", "[network] listen[0]: expected `str`, got `int`."),
        ("[model]", '[network]\nlisten = "x"\n[model]', "[network] listen: expected a list, got `str`."),
        ("[model]", "[network]\nheartbeat_s = 0.01\n[model]", "[network] heartbeat_s: expected `float` >= 0.1."),
        ("[model]", "certificate_days = 1e9\n[model]", "[swarm] certificate_days: expected `float` <= 36500.0."),
        (
            "[model]",
            '[price]\ncurrency = "usd"\n[model]',
            "[price] currency: expected `str` matching regex '^[A-Z]{3}$'. Write three",
        ),
        ("[model]", "[network]\nupload_mbit = 0\n[model]", "[network] upload_mbit: expected `float` >= 0.1."),
        ("[model]", '[network]\ndownload_mbit = "x"\n[model]', "[network] download_mbit: expected `float`, got `str`."),
        ("[model]", "[store]\nquota_gb = -1\n[model]", "[store] quota_gb: expected `float` > 0.0."),
        ('name = "a swarm"', 'name = ""', "[swarm] name: expected `str` of length >= 1."),
        ('name = "a swarm"', "name = a swarm", "is not valid TOML: Invalid value (at line 2"),
    ],
)
def test_a_mistake_is_told_where_it_is(tmp_path: Path, old: str, new: str, says: str) -> None:
    assert old in SMALLEST
    assert refused(tmp_path, SMALLEST.replace(old, new)).startswith(says)


def learning(**keys: object) -> str:
    return SMALLEST + "".join(f"{key} = {value}\n" for key, value in keys.items())


@pytest.mark.parametrize("others", ["", "staleness = 0", "staleness = 7\npublish_every = 9\nmax_batches_ahead = 64.0"])
def test_sequential_is_one_line_whatever_the_others_say(tmp_path: Path, others: str) -> None:
    learn = read_swarm_config(swarm_file(tmp_path, f'{SMALLEST}mode = "sequential"\n{others}')).learn
    assert (learn.mode, learn.staleness, learn.publish_every, learn.max_batches_ahead) == ("sequential", 0, 1, 1.0)


def test_async_is_as_the_file_says(tmp_path: Path) -> None:
    learn = read_swarm_config(swarm_file(tmp_path, learning(staleness=7, publish_every=6, max_batches_ahead=3.5))).learn
    assert (learn.mode, learn.staleness, learn.publish_every, learn.max_batches_ahead) == ("async", 7, 6, 3.5)


@pytest.mark.parametrize("line", ["", 'mode = "async"\n'])
def test_async_with_no_staleness_names_both_ways_out(tmp_path: Path, line: str) -> None:
    said = refused(tmp_path, learning(staleness=0) + line)
    assert said == (
        '[learn] staleness = 0 leaves mode = "async" nothing to do at the same time. Set mode = "sequential" to '
        "train on rollouts of exactly the policy that they update, or staleness to 1 or more."
    )


@given(staleness=st.integers(0, 1000))
def test_the_mode_can_be_read_off_what_is_in_force(staleness: int) -> None:
    with TemporaryDirectory() as directory:
        for mode in ("async", "sequential") if staleness else ("sequential",):
            text = f'{learning(staleness=staleness)}mode = "{mode}"\n'
            learn = read_swarm_config(swarm_file(Path(directory), text)).learn
            assert mode_of(learn.staleness) == learn.mode == mode


def test_what_the_file_says_of_training_reaches_the_trainer() -> None:
    trainer = (
        'objective = "tis"\nadvantage = "gae"\ncorrection = "cispo"\naggregation = "per_token"\nweight_cap = 3.0\n'
        'sequence_mask = "geometric"\nmask_low = 0.5\nmask_high = 2.0\n'
        "kl_coefficient = 0.125\nteacher_coefficient = 0.25\n"
        "gae_gamma = 0.5\ngae_lambda = 0.25\nvalue_coefficient = 0.75\nvalue_clip = 0.375\n"
        "value_learning_rate = 0.5\ndpo_beta = 0.5\n"
        "learning_rate = 0.5\nwarmup_steps = 3\ndecay_steps = 4\ndecay_floor = 0.5\nbeta1 = 0.5\n"
        "beta2 = 0.25\nweight_decay = 0.125\ngrad_clip = 2.0\nupdates_per_step = 2\nclip_low = 0.5\nclip_high = 0.75\n"
        "max_tokens_per_microbatch = 7\n"
    )
    where = (
        'activation_checkpointing = true\ndevice = "cpu"\ncompute_dtype = "bfloat16"\ncompile = true\n'
        "ranks = 4\nmachines = 2\nrouter_replay = true\n"
        'rendezvous = "learner:29500"\nlora_rank = 8\nlora_alpha = 24\nlora_targets = ["q_proj"]\n'
    )
    text = learning(temperature=0.5, max_new_tokens=9, seed=6, threads=2) + "[trainer]\n" + trainer + where
    assert set(tomllib.loads(trainer + where)) == {field.name for field in msgspec.structs.fields(TrainerSection)}
    # All at once, which no file may say: some are of an objective that others rule out.
    config = msgspec.convert(tomllib.loads(text), SwarmConfig)
    assert launch_command(TRAINER, config.trainer)[1:] == (
        "-m",
        "learner.training.distributed.launcher",
        "4",
        "2",
        "0",
        "learner:29500",
    )
    assert launch_command(TRAINER, TrainerSection()) == TRAINER
    load = msgspec.convert(load_request(config), Load)
    assert load.lora == Lora(rank=8, alpha=24, targets=["q_proj"])
    assert (load.device, load.compute_dtype, load.compile) == ("cpu", "bfloat16", True)
    assert load.router_replay
    assert (load.directory, load.seed, load.threads) == ("model", 6, 2)
    assert msgspec.to_builtins(load.hyperparameters) == {
        **{
            key: value for key, value in tomllib.loads(trainer).items() if not key.startswith(("beta", "kl", "teacher"))
        },
        **{"kl": 0.125, "teacher": 0.25, "betas": (0.5, 0.25), "temperature": 0.5, "max_new_tokens": 9},
        "gradient_checkpointing": True,
    }


LOGS_ALONE = {"offline": 'path = "logs.jsonl"\nshare = 1.0', "task": ""}


def sections(*parts: Mapping[str, str]) -> str:
    """A swarm.toml of these sections, later ones beside what an earlier part has of them; "" begins one anew."""
    found = {
        "swarm": 'name = "a swarm"',
        "model": 'directory = "model"',
        "task": 'spec = "reverse"',
        "learn": "steps = 5",
    }
    for part in parts:
        for name, lines in part.items():
            found[name] = f"{found.get(name, '')}\n{lines}" if lines else ""
    return "".join(f"[{name}]\n{lines}\n" for name, lines in found.items())


@pytest.mark.parametrize(
    ("section", "line", "around", "cure", "needs"),
    [
        ("trainer", "lora_alpha = 32", {}, "lora_rank = 8", "lora_rank = 0 trains all weights"),
        ("trainer", 'lora_targets = ["q_proj"]', {}, "lora_rank = 8", "Set lora_rank"),
        ("trainer", 'rendezvous = "here:29500"', {}, "machines = 2", "machines = 1 has no others to meet"),
        ("trainer", "clip_high = 0.3", {"trainer": 'objective = "reinforce"'}, 'correction = "cispo"', '"uncorrected"'),
        ("trainer", "clip_low = 0.3", {"trainer": 'objective = "tis"'}, 'correction = "cispo"', '"truncated_weight"'),
        (
            "trainer",
            "weight_cap = 3.0",
            {"trainer": 'objective = "cispo"'},
            'correction = "decoupled"',
            "caps no weight",
        ),
        ("trainer", "gae_gamma = 0.9", {}, 'objective = "ppo"', "has no critic"),
        ("trainer", "gae_lambda = 0.9", {}, 'advantage = "gae"', "has no critic"),
        ("trainer", "value_coefficient = 0.9", {}, 'objective = "ppo"', "has no critic"),
        ("trainer", "value_clip = 0.9", {}, 'objective = "ppo"', "has no critic"),
        ("trainer", "value_learning_rate = 0.9", {}, 'objective = "ppo"', "has no critic"),
        ("trainer", "dpo_beta = 0.5", {"learn": "group_size = 2"}, 'objective = "dpo"', "does not use preferences"),
        ("trainer", "mask_low = 0.5", {}, 'sequence_mask = "product"', "no sequence is masked"),
        ("trainer", "mask_high = 2.0", {}, 'sequence_mask = "geometric"', "Set sequence_mask"),
        ("learn", "overlong_buffer = 64", {}, 'overlong = "soft"', 'overlong = "task" subtracts no penalty'),
        (
            "learn",
            "overlong_penalty = 0.5",
            {"learn": 'overlong = "mask"'},
            "",
            'overlong = "mask" subtracts no penalty',
        ),
        ("learn", 'overlong = "zero"', LOGS_ALONE, "", "[offline] share = 1.0"),
        ("offline", "share = 0.5", {}, 'path = "logs.jsonl"', "without path there are no logs"),
        ("offline", 'chat = "never"', {}, 'path = "logs.jsonl"', "without path there are no logs"),
        ("metrics", "wandb_offline = true", {}, 'wandb = "birds"', "without wandb"),
        ("metrics", "samples = 4", LOGS_ALONE, "", "[offline] share = 1.0"),
        ("curriculum", 'order = "easy_first"', LOGS_ALONE, "", "[offline] share = 1.0"),
        ("curriculum", "min_pass_rate = 0.125", LOGS_ALONE, "", "[offline] share = 1.0"),
        ("curriculum", "max_pass_rate = 0.875", LOGS_ALONE, "", "[offline] share = 1.0"),
        ("curriculum", "dynamic_sampling = true", LOGS_ALONE, "", "[offline] share = 1.0"),
        ("evaluate", "samples = 4", LOGS_ALONE, "", "without [task] spec"),
        ("evaluate", "every_versions = 4", LOGS_ALONE, "", "without [task] spec"),
        ("evaluate", 'device = "cpu"', LOGS_ALONE, "", "without [task] spec"),
        ("evaluate", "kv_cache_gb = 0.5", LOGS_ALONE, "", "without [task] spec"),
        ("evaluate", "keep_best = 4", LOGS_ALONE, "", "without [task] spec"),
        ("evaluate", "keep_best = 4", {"learn": "keep_milestones = 0"}, "", "keep_milestones = 0 keeps none"),
        ("learn", "keep_every = 9", {"learn": "keep_milestones = 0"}, "", "keep_milestones = 0 keeps none"),
        (
            "learn",
            "keep_milestones = 9",
            {"evaluate": "keep_best = 0"},
            "keep_every = 9",
            "no checkpoint is a milestone",
        ),
        ("task", "held_out = 64", LOGS_ALONE, 'spec = "sort"', "without spec"),
    ],
)
def test_a_key_that_would_do_nothing_is_refused_with_the_one_it_needs(
    tmp_path: Path, section: str, line: str, around: dict[str, str], cure: str, needs: str
) -> None:
    said = refused(tmp_path, sections(around, {section: line}))
    assert said.startswith(f"[{section}] {line} would do nothing: ")
    assert needs in said
    assert said.endswith(f", or leave {line.split()[0]} out.")
    read_swarm_config(swarm_file(tmp_path, sections(around)))
    if cure:
        read_swarm_config(swarm_file(tmp_path, sections(around, {section: line}, {section: cure})))


@pytest.mark.parametrize(
    "off",
    [
        {"task": "held_out = 0", "evaluate": "every_versions = 3\nsamples = 4"},
        {"trainer": "decay_steps = 0\ndecay_floor = 0.5"},
        {**LOGS_ALONE, "evaluate": "every_versions = 0", "metrics": "samples = 0"},
    ],
)
def test_what_the_file_itself_turns_off_may_keep_its_settings(tmp_path: Path, off: dict[str, str]) -> None:
    read_swarm_config(swarm_file(tmp_path, sections(off)))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "[testing]\nfake_token_s = 1.0\n",
            '[testing] fake_token_s = 1.0 would do nothing: [engine] kind = "auto" generates',
        ),
        (
            '[engine]\nkind = "fake"\nkv_cache_gb = 1.0\n',
            '[engine] kv_cache_gb = 1.0 would do nothing: kind = "fake" has',
        ),
        (
            '[engine]\nkind = "transformers"\non_new_version = "continue"\n',
            '[engine] on_new_version = "continue" would do nothing: kind = "transformers" always finishes its '
            'completions before it installs a version. Set kind = "vllm", or leave',
        ),
        (
            '[engine]\nkind = "fake"\nquantization = "int8"\n',
            '[engine] quantization = "int8" would do nothing: kind = "fake" has no model',
        ),
        ('[network]\nlisten = []\nannounce = ["/ip4/1.2.3.4/tcp/1"]\n', "[network] announce = ["),
        ('[notify]\nshape = "slack"\n', '[notify] shape = "slack" would do nothing: without url nothing is posted.'),
    ],
)
def test_a_key_of_a_volunteer_that_would_do_nothing(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "node.toml").write_text(text)
    with pytest.raises(UsageError) as caught:
        read_node_config(tmp_path / "node.toml")
    assert str(caught.value).startswith(f"{tmp_path / 'node.toml'}: {says}")


@pytest.mark.parametrize(("line", "steps"), [("", 5), ("decay_steps = 0\n", 0), ("decay_steps = 7\n", 7)])
def test_the_rate_falls_over_the_whole_run_unless_the_file_says_otherwise(
    tmp_path: Path, line: str, steps: int
) -> None:
    config = read_swarm_config(swarm_file(tmp_path, SMALLEST + "[trainer]\n" + line))
    assert load_request(config)["hyperparameters"]["decay_steps"] == steps


def test_a_key_that_is_no_more_says_what_to_write(tmp_path: Path) -> None:
    said = refused(tmp_path, learning(quantized_engines="true"))
    assert said.startswith(
        '[learn] quantized_engines no longer exists. If it was true, write engine_formats = ["stored", "fp8"]'
    )


def test_more_updates_than_groups(tmp_path: Path) -> None:
    text = learning(prompts_per_step=2) + "[trainer]\nupdates_per_step = 3\n"
    assert refused(tmp_path, text) == (
        "[trainer] updates_per_step = 3 is more than the groups of a training step, [learn] prompts_per_step = 2, and "
        "each update takes at least one. Lower the one or raise the other."
    )
    assert read_swarm_config(swarm_file(tmp_path, text.replace("= 3", "= 2"))).trainer.updates_per_step == 2


def test_audits_and_fp8_cannot_both_be(tmp_path: Path) -> None:
    strict = '[trust]\nrequired_compute_dtype = "float32"\n'
    eight_bits = learning(engine_formats='["stored", "fp8"]')
    for text in (eight_bits, eight_bits + strict):
        said = refused(tmp_path, text)
        assert '[learn] engine_formats with "fp8" cannot be used with [trust] audits = true' in said
    allowed = read_swarm_config(swarm_file(tmp_path, eight_bits + "[trust]\naudits = false\n"))
    assert allowed.engines.formats == ("stored", "fp8")
    audited = read_swarm_config(swarm_file(tmp_path, learning(engine_formats='["int4", "stored", "int4"]')))
    assert audited.trust.audits
    assert audited.engines.formats == ("int4", "stored")
    engines = read_swarm_config(swarm_file(tmp_path, learning() + strict)).engines
    assert (engines.compute_dtype, engines.auto_is_it) == ("float32", False), "weights travel in bfloat16"
    assert read_swarm_config(swarm_file(tmp_path, learning())).engines.ext == {}


@pytest.mark.parametrize(("staleness", "publish_every"), [(1, 2), (3, 4)])
def test_publishing_too_rarely_for_the_window(tmp_path: Path, staleness: int, publish_every: int) -> None:
    said = refused(tmp_path, learning(staleness=staleness, publish_every=publish_every))
    assert said == (
        f"[learn] publish_every = {publish_every} is more than staleness = {staleness} allows: rollouts of one version "
        f"would be too old before the next appears. Set it to {staleness} or less."
    )
    read_swarm_config(swarm_file(tmp_path, learning(staleness=staleness, publish_every=staleness)))


def test_a_group_that_no_delivery_could_carry(tmp_path: Path) -> None:
    said = refused(tmp_path, learning(group_size=64, max_new_tokens=32768))
    assert said.startswith("[learn] group_size = 64 completions of max_new_tokens = 32768 take up to 17301504 bytes")
    assert str(MAX_WORK_BYTES) in said
    assert said.endswith("Lower one of the two.")
    read_swarm_config(swarm_file(tmp_path, learning(group_size=64, max_new_tokens=31744)))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"absent\.toml: no such file\. `volery init` writes one"):
        read_swarm_config(tmp_path / "absent.toml")
    with pytest.raises(UsageError, match=r"absent\.toml: no such file\.$"):
        read_node_config(tmp_path / "absent.toml")
    with pytest.raises(UsageError, match=r"is a directory\. Name the TOML file in it"):
        read_swarm_config(tmp_path)
    with pytest.raises(UsageError, match="cannot be read: Not a directory"):
        read_swarm_config(swarm_file(tmp_path) / "swarm.toml")
    (tmp_path / "latin.toml").write_bytes(b'name = "caf\xe9"')
    with pytest.raises(UsageError, match=r"is not UTF-8 text \(byte 11\); save it as UTF-8"):
        read_node_config(tmp_path / "latin.toml")


def test_without_a_node_file_everything_has_a_default(tmp_path: Path) -> None:
    (tmp_path / "node.toml").write_text("")
    assert read_node_config(None) == read_node_config(tmp_path / "node.toml") == NodeConfig()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("name = 5", "name: expected `str`, got `int`."),
        (
            'nmae = "x"',
            "there is no key 'nmae' (did you mean 'name'?). Known keys: name, network, store, engine, limits, price, "
            "energy, teacher, web, notify, testing.",
        ),
        ("engine = 5", "[engine] expected a table, got `int`."),
        (
            '[engine]\nkind = "vlm"',
            "[engine] kind: invalid enum value 'vlm'; choose one of 'auto', 'transformers', 'vllm', 'fake'",
        ),
        ("[engine]\nbatch_rollouts = 0", "[engine] batch_rollouts: expected `int` >= 1."),
        ("[price]\nper_hour = -1", "[price] per_hour: expected `float` >= 0.0."),
        ("[energy]\nwatts = 0", "[energy] watts: expected `float` > 0.0."),
        ("[energy]\nwatts = 10001", "[energy] watts: expected `float` <= 10000.0."),
        ('[energy]\nreport = "no"', "[energy] report: expected `bool`, got `str`."),
        ("[network]\nupload_mbit = 0", "[network] upload_mbit: expected `float` >= 0.1."),
        ("[network]\nupload_mbit = -5", "[network] upload_mbit: expected `float` >= 0.1."),
        ("[network]\nupload_mbit = nan", "[network] upload_mbit: expected `float` >= 0.1."),
        ("[network]\ndownload_mbit = inf", "[network] download_mbit: expected `float` <= 100000.0."),
        ('[network]\ndownload_mbit = "40"', "[network] download_mbit: expected `float`, got `str`."),
        (
            '[notify]\nevents = ["bans"]',
            "[notify] events[0]: invalid enum value 'bans'; choose one of 'trouble', 'end'.",
        ),
        ("[store]\nquota_gb = 0", "[store] quota_gb: expected `float` > 0.0."),
        ("[engine]\nhours = 19", "[engine] hours: expected `str`, got `int`."),
        ('[engine]\nhours = "12:00-13:00, 19:00-25:00"', "[engine] hours: '19:00-25:00': 25:00 is not a time of day."),
    ],
)
def test_a_mistake_in_a_node_file(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "node.toml"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        read_node_config(path)
    assert str(caught.value).startswith(f"{path}: {says}")


def test_sections_are_frozen(tmp_path: Path) -> None:
    config = read_swarm_config(swarm_file(tmp_path))
    assert isinstance(config, SwarmConfig)
    with pytest.raises(AttributeError):
        config.learn.steps = 6  # type: ignore[misc]
    assert config.learn == LearnSection(steps=5)


def test_the_command_line_goes_before_the_file() -> None:
    network = replaced(NodeNetworkSection(listen=[], upload_mbit=3.0), upload_mbit=10, download_mbit=40.5)
    assert network == NodeNetworkSection(listen=[], upload_mbit=10, download_mbit=40.5)
    assert replaced(network) == network


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (0.0, "--upload-mbit 0.0: expected `float` >= 0.1."),
        (-1.0, "--upload-mbit -1.0: expected `float` >= 0.1."),
        (math.nan, "--upload-mbit nan: expected `float` >= 0.1."),
        (math.inf, "--upload-mbit inf: expected `float` <= 100000.0."),
    ],
)
def test_a_mistake_on_the_command_line(value: float, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        replaced(NodeNetworkSection(), upload_mbit=value)
    assert str(caught.value) == says


def test_several_machines_need_a_place_to_meet(tmp_path: Path) -> None:
    said = refused(tmp_path, learning() + "[trainer]\nmachines = 2\n")
    assert said == (
        '[trainer] machines = 2 need rendezvous, where the others reach this one. Set it to "HOST:PORT", with a free '
        "port of this machine, 1 to 65535."
    )


@pytest.mark.parametrize(
    ("keys", "trainer", "says"),
    [
        ({"overlong": '"mask"', "group_size": 2}, 'objective = "dpo"', '[learn] overlong = "mask" leaves out'),
        ({"overlong": '"soft"', "group_size": 2}, 'objective = "dpo"', ""),
        (
            {"overlong": '"soft"', "max_new_tokens": 9, "overlong_buffer": 10},
            "",
            "[learn] overlong_buffer = 10 is more",
        ),
        ({"overlong": '"soft"', "max_new_tokens": 9, "overlong_buffer": 9}, "", ""),
    ],
)
def test_what_is_made_of_cut_off_completions_fits_the_rest(
    tmp_path: Path, keys: dict[str, object], trainer: str, says: str
) -> None:
    text = f"{learning(**keys)}[trainer]\n{trainer}\n"
    if says:
        assert refused(tmp_path, text).startswith(says)
    else:
        assert read_swarm_config(swarm_file(tmp_path, text)).learn.overlong == "soft"


@pytest.mark.parametrize(
    ("keys", "buffer"), [({"max_new_tokens": 20_480}, 4096), ({"max_new_tokens": 2}, 1), ({"overlong_buffer": 7}, 7)]
)
def test_a_fifth_of_the_budget_is_punished_where_no_other_part_is_named(
    tmp_path: Path, keys: dict[str, object], buffer: int
) -> None:
    told = read_swarm_config(swarm_file(tmp_path, learning(overlong='"soft"', group_size=2, **keys))).learn
    assert told.overlong_in_force == Overlong(mode="soft", budget=told.max_new_tokens, buffer=buffer, penalty=1.0)


def test_by_default_what_was_cut_off_is_worth_what_the_task_says(tmp_path: Path) -> None:
    assert read_swarm_config(swarm_file(tmp_path, SMALLEST)).learn.overlong_in_force.mode == "task"


@pytest.mark.parametrize(
    ("trainer", "rest", "says"),
    [
        ('objective = "distill"', "", "[distill] teacher names none"),
        ("teacher_coefficient = 0.5", "", "[distill] teacher names none"),
        ('advantage = "none"', "", "nothing is left to learn from"),
        ('objective = "grpo"', '[distill]\nteacher = "teacher"\n', "nothing is learned from it"),
        ('objective = "grpo"', "[distill]\nnodes = true\n", "names none for the learner, which audits"),
        ('objective = "dpo"\nteacher_coefficient = 1.0', '[distill]\nteacher = "teacher"\n', "pairs alone"),
        (
            'objective = "distill"',
            '[distill]\nteacher = "teacher"\n[offline]\npath = "logs.jsonl"\n',
            "[offline] path and [distill] teacher cannot be used together",
        ),
        (
            "teacher_coefficient = 0.5",
            '[distill]\nteacher = "teacher"\n[curriculum]\ndynamic_sampling = true\n',
            "a teacher (teacher_coefficient = 0.5) learns from those",
        ),
    ],
)
def test_what_a_teacher_does_not_go_with(tmp_path: Path, trainer: str, rest: str, says: str) -> None:
    size = 2 if "dpo" in trainer else 4
    text = f"{learning(group_size=size)}[trainer]\n{trainer}\n{rest}"
    assert says in refused(tmp_path, text)


def test_a_teacher_alone_or_beside_rewards(tmp_path: Path) -> None:
    text = f'{SMALLEST}[trainer]\nobjective = "distill"\n[distill]\nteacher = "teacher"\n'
    alone = read_swarm_config(swarm_file(tmp_path, text))
    assert alone.distill.teacher == str(tmp_path / "teacher")
    assert (alone.trainer.teacher_in_force, alone.trainer.advantage_in_force) == (1.0, "none")
    text = text.replace('objective = "distill"', "teacher_coefficient = 0.5")
    both = read_swarm_config(swarm_file(tmp_path, text))
    assert (both.trainer.teacher_in_force, both.trainer.advantage_in_force) == (0.5, "group_mean")


@pytest.mark.parametrize(
    ("trainer", "says"),
    [
        ('objective = "ppo"', 'the advantage "gae" (objective = "ppo") learns from those'),
        ('objective = "reinforce"', 'the advantage "batch_mean" (objective = "reinforce") learns from those'),
        ("kl_coefficient = 0.1", "kl_coefficient = 0.1 learns from those"),
        ('objective = "reinforce"\nadvantage = "group_mean"', ""),
        ('objective = "dapo"', ""),
    ],
)
def test_groups_of_one_reward_are_dropped_only_where_they_teach_nothing(
    tmp_path: Path, trainer: str, says: str
) -> None:
    text = f"{SMALLEST}[curriculum]\ndynamic_sampling = true\n[trainer]\n{trainer}\n"
    if says:
        told = refused(tmp_path, text)
        assert told.startswith("[curriculum] dynamic_sampling drops groups")
        assert says in told
    else:
        assert read_swarm_config(swarm_file(tmp_path, text)).curriculum.dynamic_sampling


def test_a_trainer_is_told_how_the_model_is_spoken_to(tmp_path: Path) -> None:
    write_character_tokenizer(tmp_path)
    (tmp_path / "template.jinja").write_text("{{ messages }}")
    said = ModelSection(
        directory=str(tmp_path), chat_template=str(tmp_path / "template.jinja"), stop=["="], stop_ids=[5]
    )
    plain = msgspec.structs.replace(said, chat_template=None, stop=[], stop_ids=[])
    config = msgspec.convert(tomllib.loads(learning()), SwarmConfig)
    load = load_request(msgspec.structs.replace(config, model=said))
    stops = TextCodec.load(tmp_path, read_ways(said)).stop_ids
    assert (load["chat_template"], set(load["stop_ids"])) == ("{{ messages }}", set(stops))
    assert len(stops) == 3
    assert {"chat_template", "stop_ids"}.isdisjoint(load_request(msgspec.structs.replace(config, model=plain)))


@pytest.mark.parametrize(
    ("learn", "expected"),
    [
        ("staleness = 3", False),
        ('mode = "sequential"', True),
        ("staleness = 3\nlongest_first = true", True),
        ('mode = "sequential"\nlongest_first = false', False),
    ],
)
def test_long_completions_are_leased_first_where_the_learner_waits_for_the_last(
    tmp_path: Path, learn: str, expected: bool
) -> None:
    text = SMALLEST.replace("[learn]", f"[learn]\n{learn}")
    assert read_swarm_config(swarm_file(tmp_path, text)).learn.leases_longest_first is expected


def test_a_path_is_shown_without_detours(tmp_path: Path) -> None:
    path = swarm_file(tmp_path, SMALLEST.replace('"model"', '"../../models/one"'))
    assert read_swarm_config(path).model.directory == str(tmp_path.resolve().parents[1] / "models" / "one")


@pytest.mark.parametrize(("theirs", "ours"), NAMES_ELSEWHERE.items())
def test_names_of_trl_are_those_of_the_page_about_it(theirs: str, ours: str) -> None:
    rows = [line.split("|") for line in COMING_FROM.read_text().splitlines() if line.startswith("|")]
    key = ours.rpartition(" ")[2]
    assert [row for row in rows if f"`{theirs}`" in row[2] and key in row[-2]], f"{theirs} is not on that page"

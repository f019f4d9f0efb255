"""Load models from a directory of weights, or make new ones with random weights.

Invariants:

- Every weight comes from the directory (a missing one is an error, never a random start), in float32.
- Besides the model one tensor is in memory at a time; each rank reads what it keeps.
- Dropout is off: engines have none, and the policy is deterministic.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, PreTrainedModel
from transformers.initialization import no_init_weights

from learner.artifacts.config_bounds import find_excess
from learner.artifacts.model_directory import CONFIG, WEIGHTS, BadModel, ModelDirectory, one_line
from learner.artifacts.model_limits import positions_in
from learner.training.distributed.sharding import fill, fill_rows, place
from learner.training.model.tensor_mapping import Part, read
from learner.training.model.weight_writer import not_finite

ARCHITECTURES = {"qwen3": "Qwen3", "qwen3_moe": "Qwen3Moe"}
"""The architectures that `make_model` can make, by the model type in a config."""

NO_MODEL = (
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    ImportError,
    RuntimeError,
    SafetensorError,
    StrictDataclassError,
)
"""Errors that transformers raises about unfit configs and weights; it has no type of its own for that."""


def outline(directory: ModelDirectory) -> Any:
    """Return the directory's model with parameters on the meta device, which take no memory, and computed buffers.

    Raises BadModel.
    """
    if excess := find_excess(directory.config, len(directory.files)):
        raise BadModel(f"{directory.path / CONFIG} {excess}; copy config.json again")
    try:
        config = AutoConfig.from_pretrained(directory.path, trust_remote_code=False, local_files_only=True)
        _require_generator(config, directory)
        _still(config)
        with _parameters_on_meta(), no_init_weights():
            model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, trust_remote_code=False)
        model.tie_weights()
    except (OSError, *NO_MODEL) as error:
        raise BadModel(f"{directory.path} could not be loaded as a causal language model: {one_line(error)}") from error
    return model


def _require_generator(config: Any, directory: ModelDirectory) -> None:
    """Raise BadModel if transformers makes no causal model of the config, or one without half of the weights."""
    said = ", ".join(map(str, config.architectures or ())) or type(config).__name__
    if getattr(config, "is_encoder_decoder", False):
        raise BadModel(
            f"{directory.path} is an encoder-decoder ({said}): its decoder generates from what its encoder has read, "
            "but here only a decoder reads the prompt; use a model that only decodes"
        )
    if type(config) not in AutoModelForCausalLM._model_mapping:
        raise BadModel(
            f"{directory.path} is no causal language model: transformers {transformers.__version__} knows none of type "
            f"{config.model_type!r} ({said}); use a model that generates text token by token"
        )


def _still(config: Any) -> None:
    """Set all dropout in the config to 0, that of layers as well: engines have none. Many models ask the config for the
    number and no module. Nothing else is changed: routers also compute with their jitter where they draw nothing
    (Phi-3.5-MoE).
    """
    for part in {id(part): part for part in (config, config.get_text_config())}.values():
        for name, value in part.to_dict().items():
            if isinstance(value, float) and "drop" in name:
                setattr(part, name, 0.0)


def windows_of(config: Any) -> list[int]:
    """Return how far back attention sees, in tokens, for the layers that do not see everything."""
    ends = ("window", "window_size", "attention_chunk_size")
    return [value for name, value in _fields(config) if type(value) is int and name.endswith(ends)]


def caps_logits(config: Any) -> bool:
    """Return whether a model of this config caps its logits after the head, or those of its attention."""
    return any(value for name, value in _fields(config) if "logit" in name and "cap" in name)


def first_position(model: Any) -> int:
    """Return the position of a sequence's first token, as `model` counts them. The descendants of fairseq's models
    (RoBERTa) begin after the id of the padding token. By themselves they also skip every token of that id, which a
    cache does not, so they are given positions.
    """
    for module in model.modules():
        if hasattr(type(module), "create_position_ids_from_input_ids") and hasattr(module, "position_embeddings"):
            return int(module.padding_idx) + 1
    return 0


def positions_of(model: Any) -> int | None:
    """Return how many tokens the longest sequence of `model` may have, None when nothing says so."""
    found = positions_in(model.config.to_dict())
    return None if found is None else found.tokens


def body_of(model: Any) -> Any:
    """Return the part of `model` that gives hidden states: all but the head. Some name another part than they have."""
    if model.base_model is not model:
        return model.base_model
    return next((part for part in model.children() if isinstance(part, PreTrainedModel)), model)


def _fields(config: Any) -> Iterator[tuple[str, Any]]:
    yield from config.get_text_config().to_dict().items()


@contextmanager
def _parameters_on_meta() -> Iterator[None]:
    register = nn.Module.register_parameter

    def without_memory(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if parameter is not None and not parameter.is_meta:
            parameter = nn.Parameter(parameter.to("meta"), parameter.requires_grad)
        register(module, name, parameter)

    nn.Module.register_parameter = without_memory  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]


def give_memory(model: Any) -> None:
    """Allocate empty parameters in this process's memory where `model` has them on the meta device."""
    made: dict[int, nn.Parameter] = {}  # so that a tied parameter stays one
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None and parameter.is_meta:
                if id(parameter) not in made:
                    empty = torch.empty_like(parameter, device="cpu")
                    made[id(parameter)] = nn.Parameter(empty, parameter.requires_grad)
                module._parameters[name] = made[id(parameter)]


def load_weights(model: Any, parts: Sequence[Part], tensors: Mapping[str, Tensor], directory: ModelDirectory) -> None:
    """Read the directory's tensors into `tensors`, those of `model`. Raises BadModel when a file cannot be read, or
    holds values that are not finite.
    """
    with ExitStack() as opened:
        try:
            files = {file: opened.enter_context(safe_open(file, "pt")) for file in set(directory.files.values())}
            for part in parts:
                _load(model, part, tensors, directory, files)
        except (OSError, SafetensorError) as error:
            raise BadModel(f"{directory.path} cannot be read ({one_line(error)}); copy it again") from error


def _load(
    model: Any, part: Part, tensors: Mapping[str, Tensor], directory: ModelDirectory, files: Mapping[Path, Any]
) -> None:
    if part.converter is None:
        [(source, _)], [target] = part.sources, part.targets
        file = directory.files[source]
        stored, (offsets, sizes) = files[file].get_slice(source), place(tensors[target])
        if not offsets:
            fill(tensors[target], _sound(files[file].get_tensor(source), source, file))
        elif sizes[0]:
            fill_rows(tensors[target], _sound(stored[offsets[0] : offsets[0] + sizes[0]], source, file))
        return

    def get(name: str) -> Tensor:
        return _sound(files[directory.files[name]].get_tensor(name), name, directory.files[name])

    found = read(model, part, get)
    for target, values in found.items():
        fill(tensors[target], values)


def _sound(values: Tensor, name: str, file: Path) -> Tensor:
    """Return `values` of the tensor called `name` if all of them are finite. Raises BadModel."""
    if not_finite(values):
        raise BadModel(
            f"{file}: {name!r} holds values that are not finite (NaN or infinity), so no node could generate with it; "
            "copy the file again, or take an earlier checkpoint of that training"
        )
    return values


def prepare(model: Any, *, gradient_checkpointing: bool) -> None:
    """Turn off dropout that no config field names, and enable gradient checkpointing if asked. Raises BadModel."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    model.eval()
    if not gradient_checkpointing:
        return
    try:
        model.activation_checkpointing_enable({"use_reentrant": False})
    except ValueError as error:
        raise BadModel(f"activation_checkpointing = true: {one_line(error)} Leave it out for this model") from error
    for module in model.modules():
        # transformers checkpoints only modules in training mode. The modules inside a layer must not be in that mode,
        # or routers would draw their experts by chance.
        module.training = bool(getattr(module, "gradient_checkpointing", False))


def make_model(directory: Path, config: Mapping[str, Any], seed: int, architecture: str = "qwen3") -> int:
    """Write a new model with random weights into `directory`, and return its number of parameters.

    `config` holds fields of transformers' config of `architecture`. Equal seeds give equal weights. Raises BadModel
    when a field is unknown or unfit, or a model is there already; OSError when the disk fails.
    """
    if (directory / CONFIG).exists() or (directory / WEIGHTS).exists():
        raise BadModel(f"{directory} holds a model already; name another directory")
    name = ARCHITECTURES[architecture]
    kind = getattr(transformers, f"{name}Config")
    unknown = sorted(set(config) - set(kind().to_dict()) - set(kind.attribute_map))
    if unknown:
        raise BadModel(f"{', '.join(unknown)}: no such field in a {name} config; see transformers' {name}Config")
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        try:
            model = getattr(transformers, f"{name}ForCausalLM")(kind(**config)).float()
        except NO_MODEL as error:
            raise BadModel(f"these fields do not make a {name} model: {one_line(error)}") from error
    model.generation_config = GenerationConfig.from_model_config(model.config)
    _save_into(model, directory)
    return sum(parameter.numel() for parameter in model.parameters())


def _save_into(model: Any, directory: Path) -> None:
    """Save into a directory beside, then move the files, config last: without it a kill leaves no half model."""
    directory.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".partial-", dir=directory) as name:
        partial = Path(name)
        try:
            model.save_pretrained(partial)
        except SafetensorError as error:
            raise OSError(f"{directory}: {one_line(error)}") from error
        for file in sorted(partial.iterdir(), key=lambda file: file.name == CONFIG):
            file.rename(directory / file.name)


def quiet_transformers() -> None:
    """Disable progress bars and advice in the log."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()

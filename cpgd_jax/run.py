"""What a run consists of, built from its config before the first step."""

import dataclasses
import functools
from pathlib import Path
from typing import Any, NamedTuple

import jax
import optax
from jax.sharding import Mesh

from cpgd_jax import (
    config_checks,
    distributed,
    flops,
    initial,
    matmul_rate,
    optim,
    packing,
    progress,
    sharding,
)
from cpgd_jax import workdir as workdir_lib
from cpgd_jax.config import Config
from cpgd_jax.data import batching, images, sources
from cpgd_jax.data.tokenizer import Tokenizer
from cpgd_jax.errors import UserError
from cpgd_jax.models import attention, seeing
from cpgd_jax.rewards import golds
from cpgd_jax.types import Example, Microbatches, PromptBatch, TrainBatch, TrainState


@dataclasses.dataclass(frozen=True)
class Run:
    """The parts of a run that do not change while it trains."""

    config: Config
    workdir: Path
    tokenizer: Tokenizer
    source: sources.Source
    held_out: list[Example]
    mesh: Mesh
    graphdef: Any  # of the model; `nnx.merge(graphdef, params)` inside jit
    optimizer: optax.GradientTransformation
    shardings: TrainState  # of the state, on the mesh
    reader: images.Reader | None = None  # of prompts' images; None = there are none

    def speed(self, batch: TrainBatch, seconds: float) -> dict:
        """Metrics of an optimiser step that took so long."""
        work = flops.work(batch.prompt_mask_BS, batch.mask_BT, batch.group_B)
        done = flops.train_step(self.config.model, work)
        return {
            "time/train_s": seconds,
            "train/tokens_per_s": work.head_tokens / seconds,
            "train/mfu": done / seconds / self._flops_per_s,
        }

    @functools.cached_property
    def _flops_per_s(self) -> float:
        """Of matrix products on all devices of the mesh; measured once."""
        model = self.config.model
        return matmul_rate.flops_per_s(model, model.dtype) * self.mesh.size

    def read(self, positions: range) -> list[Example]:
        """Training problems; with several processes each reads its share."""
        rows = distributed.divide(self.source.train, positions)
        return [Example(*row[:-1], images=tuple(row[-1])) for row in rows]

    @property
    def row_len(self) -> int:
        """Slots of a packed row, about; 0 = no limit."""
        model = self.config.model
        return self.config.train.row_len or attention.row_len(model.attention, model.dtype)

    def look(self, params, prompts: PromptBatch) -> PromptBatch:
        """The prompts with what the model sees of their images."""
        if not any(prompts.images):
            return prompts
        tokens = [ids[m] for ids, m in zip(prompts.token_QS, prompts.mask_QS, strict=True)]
        train_vision = self.config.optim.train_vision
        seen = seeing.look(
            self.graphdef, params, tokens, prompts.images, self.mesh, keep_patches=train_vision
        )
        return prompts._replace(seen=seen)

    def thumbnails(self, example: Example) -> dict:
        """{"images": small copies of the example's, as data: addresses}; {} where it has none."""
        shown = [images.thumbnail(self.reader.fetch(name), name) for name in example.images]
        return {"images": shown} if shown else {}

    def pack(self, batch: TrainBatch, seen=()) -> Microbatches:
        """A batch of host arrays in packed microbatches on the devices. seen: of each group."""
        size, ways = self.config.train.microbatch_size, sharding.row_ways(self.mesh)
        packed = packing.pack(batch, size, ways, self.row_len, seen)
        return distributed.to_devices(packed, sharding.batch_sharding(self.mesh, axis=1))


class Checked(NamedTuple):
    """What is known of a run before it has parameters."""

    config: Config  # no size left open
    tokenizer: Tokenizer
    source: sources.Source
    held_out: list[Example]
    mesh: Mesh
    reader: images.Reader | None


def build(config: Config, folder: str | Path) -> tuple[Run, TrainState]:
    """Checks all that can be checked, cheap things first, then claims the folder."""
    config, tokenizer, source, held_out, mesh, reader = check(config, folder)
    optimizer = optim.make_optimizer(config.optim, config.total_steps, config.seed)
    graphdef, state = initial.state(config, mesh, optimizer)
    distributed.by_first(_claim, folder, config, tokenizer)
    distributed.check_shared(folder, "config.json")
    places = jax.tree.map(lambda x: x.sharding, state)
    folder = Path(folder)
    parts = config, folder, tokenizer, source, held_out, mesh, graphdef, optimizer, places
    return Run(*parts, reader), state


def check(config: Config, folder: str | Path) -> Checked:
    """All that can be checked before there are parameters, cheap things first; writes nothing."""
    distributed.check_same(config)
    tokenizer = initial.tokenizer(config)
    config = initial.with_sizes(config, tokenizer)
    distributed.by_first(workdir_lib.check, folder, config)
    source = sources.load(config.data, config.seed)
    reader = _reader(config, tokenizer, source)
    if config.eval.blank_images and reader is None:
        raise UserError("config.eval.blank_images is True, and the data has no images: drop it")
    if reader and isinstance(source, sources.FileSource):
        length = functools.partial(_prompt_length, config, tokenizer, reader)
        source = source.fitting(length, config.rollout.max_prompt_len)
    held_out = source.held_out(config.eval.problems)
    _check_lengths(config, tokenizer, reader, [*source.longest(), *held_out])
    _warn_of_golds(config, source.longest(), held_out)
    mesh = sharding.make_mesh(config.mesh.data, config.mesh.fsdp, config.mesh.tensor)
    check_rows(mesh, "train.microbatch_size", config.train.microbatch_size)
    check_memories(mesh, config.model.remat)
    return Checked(config, tokenizer, source, held_out, mesh, reader)


def _claim(folder: str | Path, config: Config, tokenizer: Tokenizer) -> None:
    folder = workdir_lib.claim(folder, config)
    tokenizer.save_pretrained(folder / "tokenizer")


def _reader(config: Config, tokenizer: Tokenizer, source) -> images.Reader | None:
    """Of the images of the source's rows."""
    data, vision = config.data, config.model.vision
    if not data.images and data.source != "pictures":
        return None
    images.check_model(vision, tokenizer.image_id)
    return images.Reader(source.fetch, images.settings(vision, data.min_pixels, data.max_pixels))


def _check_lengths(config: Config, tokenizer: Tokenizer, reader, examples: list[Example]) -> None:
    """A prompt or demonstration over its limit is an error before training, not in its midst."""
    r, system_prompt = config.rollout, config.data.system_prompt
    if config.stage == "supervised":
        limits = (r.max_prompt_len, r.max_response_len)
        batching.demonstration_batch(examples, tokenizer, system_prompt, *limits, reader)
    for example in examples:
        tokens = _prompt_length(config, tokenizer, reader, example)
        batching.check_length(example, tokens, r.max_prompt_len)


def _prompt_length(config: Config, tokenizer: Tokenizer, reader, example: Example) -> int:
    return batching.length(example, tokenizer, config.data.system_prompt, reader)


def _warn_of_golds(config: Config, *sets) -> None:
    """Says how many reference answers of a file cannot be compared by value, and which."""
    if config.data.source in config_checks.GENERATED:  # whole numbers
        return
    for key, examples in zip(("path", "held_out_path"), sets, strict=True):
        if warning := golds.warning(example.gold for example in examples):
            progress.warn(f"config.data.{key}: {warning}")


def check_memories(mesh: Mesh, remat: str) -> None:
    """Offloading needs a memory on the host that the device reaches by itself."""
    device = mesh.devices.flat[0]
    kinds = {memory.kind for memory in device.addressable_memories()}
    if remat == "offload" and "pinned_host" not in kinds:
        raise UserError(
            f"config.model.remat is 'offload', but a {device.device_kind} has no pinned_host"
            " memory: choose block"
        )


def check_rows(mesh: Mesh, name: str, rows: int) -> None:
    """Rows of a batch must divide evenly over the data and fsdp axes."""
    ways = sharding.row_ways(mesh)
    if rows % ways:
        raise UserError(
            f"config.{name} is {rows}: it must be a multiple of mesh data x fsdp = {ways}"
        )

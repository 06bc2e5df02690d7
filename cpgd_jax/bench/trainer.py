"""The parts of a run that a train step needs, without files; the step on padded rows."""

from pathlib import Path

import jax
import numpy as np

from cpgd_jax import initial, optim, sharding, train
from cpgd_jax.config import Config
from cpgd_jax.models import attention
from cpgd_jax.run import Run
from cpgd_jax.types import Microbatches, Packed, TrainBatch


class Trainer:
    """A run and its state, which each `step` moves on."""

    def __init__(self, config: Config):
        mesh = sharding.make_mesh(config.mesh.data, config.mesh.fsdp, config.mesh.tensor)
        optimizer = optim.make_optimizer(config.optim, config.total_steps, config.seed)
        graphdef, self.state = initial.state(config, mesh, optimizer)
        shardings = jax.tree.map(lambda x: x.sharding, self.state)
        self.run = Run(config, Path(), None, None, [], mesh, graphdef, optimizer, shardings)
        self.row, _ = train.algorithm_row(config)
        self._step = train.make_step(self.run, self.row)

    def step(self, micro: Microbatches):
        """One optimiser step; its metrics, once it is done."""
        self.state, metrics = self._step(self.state, micro)
        return jax.block_until_ready(metrics)

    def padded(self, batch: TrainBatch) -> Microbatches:
        """The batch as it is: each row its prompt and its response, padded to the full width."""
        size = self.run.config.train.microbatch_size
        order_MB = np.arange(len(batch.mask_BT)).reshape(-1, size)
        cut = jax.tree.map(lambda x: x[order_MB], batch)
        each = [_rows(jax.tree.map(lambda x, m=m: x[m], cut)) for m in range(len(order_MB))]
        packed = jax.tree.map(lambda *x: np.stack(x), *each)
        placement = sharding.batch_sharding(self.run.mesh, axis=1)
        return jax.device_put(Microbatches(cut, packed), placement)


def _rows(batch: TrainBatch) -> Packed:
    """A row a response: slot S-1+t predicts its token t."""
    B, T = batch.mask_BT.shape
    token_BU = np.concatenate([batch.prompt_BS, batch.response_BT], axis=1)[:, :-1]
    mask_BU = np.concatenate([batch.prompt_mask_BS, batch.mask_BT], axis=1)[:, :-1]
    place_BT = np.where(batch.mask_BT, np.arange(B * T, dtype=np.int32).reshape(B, T), B * T)
    position_BU = np.maximum(np.cumsum(mask_BU, axis=1, dtype=np.int32) - 1, 0)
    spans = jax.tree.map(np.asarray, attention.padded(mask_BU))
    return Packed(token_BU, position_BU, spans, batch.response_BT, place_BT)

"""A rollout with images on its way to the train step: what is seen is seen once, and kept."""

import dataclasses

import jax
import numpy as np
import pytest
import tiny
import vl
from test_experience import Scores, by_digits

from cpgd_jax import experience, groups, run, train, vision, work
from cpgd_jax.models import seeing
from cpgd_jax.ops import masked

pytestmark = pytest.mark.usefixtures("one_device")
IDS = (124, 125, 126, 127)  # above the tokenizer's
VISION = dataclasses.replace(vl.SIZES, image_id=IDS[0], other_ids=IDS[1:])
CHANGES = dict(model__vocab_size=128, model__vision=dataclasses.asdict(VISION))


def with_images(prompt_batch):
    """Every second prompt begins with an image of its own."""

    def changed(examples, *args):
        made = prompt_batch(examples, *args)
        Q = len(examples)
        token_QS = np.zeros((Q, 6 + made.token_QS.shape[1]), np.int32)
        mask_QS = np.zeros(token_QS.shape, bool)
        for q in range(Q):
            before = [IDS[2], *[IDS[0]] * 4, IDS[3]] if q % 2 else []
            ids = [*before, *made.token_QS[q][made.mask_QS[q]]]
            token_QS[q, -len(ids) :], mask_QS[q, -len(ids) :] = ids, True
        images = tuple((vl.image(vl.SMALL, q),) if q % 2 else () for q in range(Q))
        return made._replace(token_QS=token_QS, mask_QS=mask_QS, images=images)

    return changed


@pytest.fixture(scope="module", params=[False, True], ids=["frozen", "trained"])
def parts(request, tmp_path_factory):
    """(run, state, made, how often the tower ran meanwhile) of a rollout."""
    patch, calls, see = pytest.MonkeyPatch(), [], seeing.see
    tiny.use_one_device(patch)
    patch.setattr(groups, "prompt_batch", with_images(groups.prompt_batch))
    # The trainer's law knows no forbidden ids, which with a new model are likely ones.
    patch.setattr(vision, "never_sampled", lambda sizes: ())
    patch.setattr(seeing, "see", lambda *args: calls.append(1) or see(*args))
    config = tiny.config(**CHANGES, optim__train_vision=request.param)
    given, state = run.build(config, tmp_path_factory.mktemp("run"))
    row, _ = train.algorithm_row(config)
    made = experience.collect(given, row, state.params, None, Scores(by_digits), 0, 0)
    yield given, state, row, made, calls
    patch.undo()


def test_the_tower_runs_once_and_old_is_what_was_sampled(parts):
    given, _, _, made, calls = parts
    assert len(calls) == 1 and len(made.examples) == given.config.rollout.prompts
    assert [seen is not None for seen in made.seen] == [False, True, False, True]
    assert made.shared["rollout/logp_gap_max"] < 1e-4


def test_steps_see_nothing_anew_and_begin_on_policy(parts):
    given, state, row, made, calls = parts
    state, step, before = (
        jax.tree.map(jax.numpy.copy, state),
        train.make_step(given, row),
        len(calls),
    )
    old = jax.device_get(state.params)
    for k in range(given.config.minibatches):
        batch = experience.minibatch(given.config, made.batch, 0, k)
        state, metrics = step(state, given.pack(batch, made.seen))
        if k == 0:
            assert masked.to_host(metrics)["ratio/max"] == pytest.approx(1.0, abs=1e-4)
    assert len(calls) == before
    moved = jax.tree.map(lambda x, y: np.abs(x - y).max(), jax.device_get(state.params), old)
    largest = {name: max(jax.tree.leaves(moved[name])) for name in ("visual", "blocks")}
    assert largest["blocks"] > 0
    assert (largest["visual"] > 0) == given.config.optim.train_vision


def test_a_checkpoint_keeps_no_features_and_they_are_seen_again(parts):
    given, state, _, made, _ = parts
    kept = work.encode(made)
    assert kept["seen"] == ()
    found = experience.look_again(given, state.params, work.decode(kept))
    assert found.examples == made.examples
    for x, y in zip(jax.tree.leaves(found.seen), jax.tree.leaves(made.seen), strict=True):
        np.testing.assert_array_equal(x, y)
    assert experience.look_again(given, state.params, made) is made

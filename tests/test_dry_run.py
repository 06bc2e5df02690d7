"""A dry run says what the run would be, finds what would stop it, and writes nothing."""

import jax
import pytest
import tiny

from cpgd_jax import dry_run, initial, optim, run
from cpgd_jax.errors import UserError


@pytest.mark.parametrize("stage", ["rl", "supervised"])
def test_it_says_what_the_run_would_be(tmp_path, capsys, stage):
    changes = dict(rollout__max_response_len=16, mesh__fsdp=2, mesh__data=2)
    config = tiny.config(stage=stage, **changes)
    dry_run.dry_run(config, str(tmp_path / "run"))
    out = capsys.readouterr().out
    assert "it can start" in out and "data 2, fsdp 2, tensor 1 of 4 x cpu" in out
    if stage == "rl":
        for part in ("4 prompts x 4 samples = 16 responses", "2, each of 2 optimiser steps", "1.5"):
            assert part in out, part
    assert not (tmp_path / "run").exists()


def test_the_memory_is_that_of_the_state_itself(tmp_path):
    config = tiny.config(mesh__data=1, mesh__fsdp=4)
    found = run.check(config, tmp_path / "run")
    optimizer = optim.make_optimizer(config.optim, config.total_steps, config.seed)
    _, state = initial.state(found.config, found.mesh, optimizer)
    held = sum(x.addressable_shards[0].data.nbytes for x in jax.tree.leaves(state))
    assert dry_run._bytes(dry_run._shapes(found)) == held


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (dict(rollout__max_prompt_len=3), "over config.rollout.max_prompt_len 3"),
        (dict(mesh__tensor=3), "there are 4 devices"),
        (dict(data__source="jsonl", data__path="no", data__held_out_path="no"), "no such file"),
        (dict(model__init_from="nowhere"), "give the workdir of a run"),
        (dict(train__microbatch_size=2), "multiple of mesh data x fsdp = 4"),
    ],
)
def test_it_finds_mistakes(tmp_path, changes, words):
    with pytest.raises(UserError, match=words):
        dry_run.dry_run(tiny.config(**changes), str(tmp_path / "run"))
    assert not list(tmp_path.iterdir())


def test_a_reference_answer_that_is_not_accepted_is_said(tmp_path, capsys, monkeypatch):
    nothing = dry_run.Verifier.score_batch

    def score_batch(self, texts, golds, **weights):
        return nothing(self, ["no answer"], golds, **weights)

    monkeypatch.setattr(dry_run.Verifier, "score_batch", score_batch)
    dry_run.dry_run(tiny.config(), str(tmp_path / "run"))
    said = capsys.readouterr()
    assert "is not accepted as an answer" in said.err and "0 (accuracy 0" in said.out

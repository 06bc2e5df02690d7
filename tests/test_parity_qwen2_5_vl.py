"""Tiny random Qwen2.5-VL models of transformers (torch, float32) against ours."""

import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import vl
from flax import nnx
from safetensors.numpy import load_file, save_file

from cpgd_jax import models, vision
from cpgd_jax.models import vision_tower
from cpgd_jax.rollout import generate

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.parity

PROMPTS = {
    "one": [[vl.SMALL]],
    "wide": [[vl.WIDE]],
    "three": [[vl.TALL, vl.SMALL, vl.WIDE]],
    "text": [[], []],
    "mixed": [[vl.WIDE], [], [vl.SMALL, vl.TALL], []],
}


def build(tied):
    v = vl.SIZES
    config = transformers.Qwen2_5_VLConfig(
        text_config=dict(
            vocab_size=vl.VOCAB,
            hidden_size=48,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=3,
            num_key_value_heads=1,
            rms_norm_eps=1e-6,
            rope_parameters={
                "rope_type": "default",
                "rope_theta": 1e4,
                "mrope_section": list(v.rope_sections),
            },
            bos_token_id=None,
            eos_token_id=vl.STOP,
            pad_token_id=0,
            tie_word_embeddings=tied,
        ),
        vision_config=dict(
            depth=v.num_layers,
            hidden_size=v.hidden_size,
            intermediate_size=v.mlp_size,
            num_heads=v.num_heads,
            out_hidden_size=48,
            fullatt_block_indexes=list(v.full_attention),
        ),
        image_token_id=vl.IMAGE,
        video_token_id=vl.VIDEO,
        vision_start_token_id=vl.BEGIN,
        vision_end_token_id=vl.END,
        tie_word_embeddings=tied,
    )
    torch.manual_seed(0)
    config._attn_implementation = "eager"
    theirs = transformers.Qwen2_5_VLForConditionalGeneration(config)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(0.15 * torch.randn_like(parameter))
    return theirs.eval()


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def pair(request, tmp_path_factory):
    theirs, folder = build(request.param), tmp_path_factory.mktemp("theirs")
    theirs.save_pretrained(folder)
    return theirs, models.from_pretrained(folder), folder


def prompts(name):
    """(rows of ids, images of each)."""
    made = [vl.prompt(grids, seed) for seed, grids in enumerate(PROMPTS[name])]
    return [ids for ids, _ in made], [images for _, images in made]


def arguments(token_BT, mask_BT, images):
    given = {
        "input_ids": torch.tensor(token_BT.astype(np.int64)),
        "attention_mask": torch.tensor(mask_BT.astype(np.int64)),
    }
    if (processed := vl.processed(images)) is not None:
        given |= {k: torch.tensor(v) for k, v in processed.items()}
        given["mm_token_type_ids"] = torch.tensor((token_BT == vl.IMAGE).astype(np.int32))
    return given


def their_logits(theirs, token_BT, mask_BT, images):
    theirs.model.rope_deltas = None
    with torch.no_grad():
        return theirs(**arguments(token_BT, mask_BT, images)).logits.numpy()


def assert_same_logits(theirs, ours, name, side="right"):
    rows, images = prompts(name)
    token_BT, mask_BT = vl.padded(rows, side)
    expected = their_logits(theirs, token_BT, mask_BT, images)
    found = np.asarray(models.logits(ours, token_BT, mask_BT, vl.processed(images)))
    assert np.abs(expected).max() > 1
    np.testing.assert_allclose(found[mask_BT], expected[mask_BT], rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", PROMPTS)
def test_logits(pair, name):
    theirs, ours, _ = pair
    side = "left" if name == "mixed" else "right"
    assert_same_logits(theirs, ours, name, side)
    assert_same_logits(theirs, ours, name, side)  # the second call as the first


@pytest.mark.parametrize("name", PROMPTS)
def test_positions(pair, name):
    theirs, _, _ = pair
    rows, images = prompts(name)
    token_BT, mask_BT = vl.padded(rows, "left")
    given = arguments(token_BT, mask_BT, images)
    expected, delta_B1 = theirs.model.get_rope_index(
        given["input_ids"],
        torch.tensor((token_BT == vl.IMAGE).astype(np.int32)),
        image_grid_thw=given.get("image_grid_thw"),
        attention_mask=given["attention_mask"],
    )
    for b, (ids, shown) in enumerate(zip(rows, images, strict=True)):
        found_S3 = vision.positions(ids, [one.grid for one in shown], vl.SIZES)
        np.testing.assert_array_equal(found_S3.T, expected[:, b][:, torch.tensor(mask_BT[b])])
        assert found_S3[-1, 0] + 1 == len(ids) + int(delta_B1[b, 0])


def test_every_block_of_the_tower(pair):
    """Each block alone, given what their block was given, in the order of their windows."""
    theirs, ours, _ = pair
    rows, images = prompts("three")
    seen = []
    hooks = [
        block.register_forward_hook(lambda _, args, out: seen.append((args[0], out)))
        for block in theirs.model.visual.blocks
    ]
    their_logits(theirs, *vl.padded(rows), images)
    for hook in hooks:
        hook.remove()
    joined = vision.join([vision.windows(image, vl.SIZES) for image in images[0]])
    mask_X = joined.mask_NY.reshape(-1)
    patches = jax.tree.map(jnp.asarray, joined)
    tower, (cos, sin) = ours.visual, ours.visual.angles(patches.position_NY2)
    graphdef, state = nnx.split(tower.blocks)
    for layer, (before, after) in enumerate(seen):
        whole = layer in vl.SIZES.full_attention
        attend = vision_tower._attend_in_frames if whole else vision_tower._attend_in_windows
        block = nnx.merge(graphdef, jax.tree.map(lambda x, i=layer: x[i], state))
        x_XD = np.zeros((len(mask_X), before.shape[-1]), np.float32)
        x_XD[mask_X] = before.numpy()
        x_NYD = x_XD.reshape(*joined.mask_NY.shape, -1)
        got = block(jnp.asarray(x_NYD), cos, sin, lambda *qkv, a=attend: a(*qkv, patches))
        got = np.asarray(got).reshape(x_XD.shape)[mask_X]
        np.testing.assert_allclose(got, after.numpy(), rtol=1e-5, atol=1e-5)
    assert len(seen) == vl.SIZES.num_layers


PUBLISHED = {"model.visual.": "visual.", "model.language_model.": "model."}
SINCE_4_52 = {"visual.": "model.visual.", "model.": "model.language_model."}


def renamed(folder, target, prefixes):
    """The folder's weights under other names."""
    tensors = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        old = next((prefix for prefix in prefixes if name.startswith(prefix)), "")
        tensors[prefixes.get(old, "") + name.removeprefix(old)] = tensor
    target.mkdir()
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    shutil.copy(folder / "config.json", target)
    return set(tensors)


def test_both_namings(pair, tmp_path):
    theirs, _, folder = pair
    then = renamed(folder, tmp_path / "then", PUBLISHED)
    now = renamed(tmp_path / "then", tmp_path / "now", SINCE_4_52)
    assert now & then <= {"lm_head.weight"} and "visual.merger.mlp.0.bias" in then
    for name in ("then", "now"):
        assert_same_logits(theirs, models.from_pretrained(tmp_path / name), "mixed")


def test_saved_by_us_it_loads_in_transformers(pair, tmp_path):
    theirs, ours, _ = pair
    models.save_pretrained(ours, tmp_path / "ours", stop_ids=(vl.STOP,), max_shard_bytes=60_000)
    loaded, info = transformers.Qwen2_5_VLForConditionalGeneration.from_pretrained(
        tmp_path / "ours", output_loading_info=True, attn_implementation="eager"
    )
    assert not any(info.values()), info
    rows, images = prompts("mixed")
    token_BT, mask_BT = vl.padded(rows)
    expected = their_logits(theirs, token_BT, mask_BT, images)
    found = their_logits(loaded.eval(), token_BT, mask_BT, images)
    np.testing.assert_array_equal(found[mask_BT], expected[mask_BT])


def test_greedy_generation(pair):
    """32 tokens, each prompt on a slot of its own and all on fewer slots than prompts."""
    theirs, ours, _ = pair
    rows, images = prompts("mixed")
    settings = dict(samples_per_prompt=1, max_new_tokens=32, temperature=0.0, stop_ids=(vl.STOP,))
    together = generate(ours, rows, images=images, slots=2, **settings)
    for ids, shown, (found,) in zip(rows, images, together, strict=True):
        theirs.model.rope_deltas = None
        with torch.no_grad():
            expected = theirs.generate(
                **arguments(*vl.padded([ids]), [shown]),
                max_new_tokens=32,
                do_sample=False,
                suppress_tokens=[vl.IMAGE, *vl.SIZES.other_ids],
            )
        assert found.tokens == expected[0, len(ids) :].tolist()

"""The device mesh, and the one table that places logical axes on it.

A parameter names its dimensions (`logical_axes`, see `cpgd_jax.models.layers`); `RULES` says which
mesh axis each name is split over. Changing the parallelism is a change of the mesh's sizes.
"""

import math

import jax
from flax import nnx
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from cpgd_jax.errors import UserError

MESH_AXES = ("data", "fsdp", "tensor")

RULES = {  # logical axis -> mesh axis or axes; None = whole on every device
    "layers": None,  # scanned over
    "vocab": "tensor",
    "embed": "fsdp",
    "heads": "tensor",
    "kv_heads": "tensor",
    "head_dim": None,
    "mlp": "tensor",
    "norm": None,
    "lora": None,  # the rank of an adapter
    "vision_embed": "fsdp",
    "vision": None,  # what else the vision tower has
    "batch": ("data", "fsdp"),
}


def make_mesh(data: int = 1, fsdp: int = -1, tensor: int = 1, devices=None) -> Mesh:
    """A mesh (data, fsdp, tensor) over `devices` (None = all); one size may be -1 = what is left.

    UserError when the sizes do not multiply to the number of devices.
    """
    devices = jax.devices() if devices is None else list(devices)
    sizes = dict(zip(MESH_AXES, (data, fsdp, tensor), strict=True))
    open_axes = [name for name, size in sizes.items() if size == -1]
    for name, size in sizes.items():
        if size < 1 and size != -1:
            raise UserError(
                f"mesh axis {name} = {size}: give a positive size, or -1 for what is left"
            )
    if len(open_axes) > 1:
        raise UserError(
            f"mesh axes {' and '.join(open_axes)} are both -1: only one can be what is left"
        )
    fixed = math.prod(size for size in sizes.values() if size != -1)
    text = ", ".join(f"{name} = {size}" for name, size in sizes.items())
    if len(devices) % fixed or (not open_axes and fixed != len(devices)):
        raise UserError(
            f"mesh {text}: its sizes multiply to {fixed}, there are {len(devices)} devices"
        )
    for name in open_axes:
        sizes[name] = len(devices) // fixed
    axis_types = (AxisType.Auto,) * len(MESH_AXES)
    shape = tuple(sizes.values())
    try:
        return jax.make_mesh(shape, MESH_AXES, axis_types, devices=devices)
    except NotImplementedError:  # of no subset of a TPU slice's axes: one of them is split
        grid = mesh_utils.create_device_mesh(shape, devices, allow_split_physical_axes=True)
        return Mesh(grid, MESH_AXES, axis_types=axis_types)


def partition_spec(logical_axes, rules=RULES) -> P:
    """The table looked up for each dimension; a mesh axis may split one dimension only."""
    placed: dict[str, str] = {}
    for logical in logical_axes:
        if logical not in rules:
            raise UserError(
                f"logical axis {logical!r} is not in the sharding table {sorted(rules)}"
            )
        for mesh_axis in _as_tuple(rules[logical]):
            if mesh_axis in placed:
                both = f"{placed[mesh_axis]} and {logical}"
                raise UserError(
                    f"sharding table: {both} of one array are both on mesh axis {mesh_axis}"
                )
            placed[mesh_axis] = logical
    return P(*(rules[logical] for logical in logical_axes))


def param_shardings(mesh: Mesh, state, rules=RULES):
    """The same tree with a NamedSharding in place of every array.

    state: arrays or ShapeDtypeStructs; each `nnx.Variable` in it is placed by its `logical_axes`,
    anything else is replicated. An optimiser's moments keep the parameters' Variables, so this
    serves an optax state or a whole `TrainState` as it serves the parameters.
    UserError when a mesh axis does not divide the dimension that it splits.
    """

    def place(path, leaf):
        if not isinstance(leaf, nnx.Variable):
            return replicated(mesh)
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        return leaf.replace(_sharding(mesh, name, leaf, rules))

    return jax.tree.map_with_path(place, state, is_leaf=lambda x: isinstance(x, nnx.Variable))


def batch_sharding(mesh: Mesh, axis: int = 0) -> NamedSharding:
    """One axis, the leading one by default, over data and fsdp; every other axis whole."""
    return NamedSharding(mesh, P(*[None] * axis, RULES["batch"]))


def ways(mesh_axes) -> int:
    """Into how many parts the ambient mesh (`jax.set_mesh`) splits what lies on these axes."""
    shape = jax.sharding.get_abstract_mesh().shape
    return math.prod(shape.get(axis, 1) for axis in _as_tuple(mesh_axes))


def constrain(x, *logical_axes):
    """x, laid out on the ambient mesh as the table says; None = whole."""
    if jax.sharding.get_abstract_mesh().size <= 1:
        return x
    spec = P(*(None if axis is None else RULES[axis] for axis in logical_axes))
    return jax.lax.with_sharding_constraint(x, spec)


def row_ways(mesh: Mesh) -> int:
    """Into how many parts the rows of a batch are split."""
    return math.prod(mesh.shape[axis] for axis in RULES["batch"])


def platform() -> str:
    """cpu, gpu or tpu: of the ambient mesh (`jax.set_mesh`), else of the default backend."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    return device.platform if device else jax.default_backend()


def replicated(mesh: Mesh) -> NamedSharding:
    return NamedSharding(mesh, P())


def _sharding(mesh, name, variable, rules) -> NamedSharding:
    logical_axes = variable.get_metadata().get("logical_axes")
    shape = variable.get_raw_value().shape
    if logical_axes is None or len(logical_axes) != len(shape):
        raise UserError(
            f"parameter {name} {shape} needs a logical axis a dimension: {logical_axes}"
        )
    spec = partition_spec(logical_axes, rules)
    for logical, size, axes in zip(logical_axes, shape, spec, strict=True):
        ways = math.prod(mesh.shape[axis] for axis in _as_tuple(axes))
        if size % ways:
            over = " x ".join(_as_tuple(axes))
            raise UserError(
                f"mesh axis {over} = {ways} does not divide {logical} = {size} of {name}"
            )
    return NamedSharding(mesh, spec)


def _as_tuple(axes) -> tuple[str, ...]:
    return () if axes is None else (axes,) if isinstance(axes, str) else tuple(axes)

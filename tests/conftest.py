"""Tests run on four CPU devices, refuse rank promotion, and share one compilation cache."""

import os
import tempfile

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Compiling takes most of the time, and most of that makes programs fast that run once.
os.environ.setdefault(
    "CPGD_JAX_TEST_XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    " --xla_cpu_use_fusion_emitters=false",
)
os.environ["XLA_FLAGS"] = (
    f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=4"
    f" {os.environ['CPGD_JAX_TEST_XLA_FLAGS']}"
)
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Workers, processes and later runs share what one has compiled.
os.environ.setdefault(
    "JAX_COMPILATION_CACHE_DIR", os.path.join(tempfile.gettempdir(), f"cpgd_jax_{os.getuid()}")
)
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")

import jax
import pytest

jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.fixture
def repo():
    from pathlib import Path

    return Path(__file__).resolve().parents[1]


@pytest.fixture
def shared(repo):
    """The folder of real data beside the checkout; tests that need it skip without it."""
    folder = repo.parent / "shared"
    if not folder.is_dir():
        pytest.skip("needs the data folder ../shared, which is not here")
    return folder


@pytest.fixture
def one_device(monkeypatch):
    """Runs use one of the four devices."""
    import tiny

    tiny.use_one_device(monkeypatch)

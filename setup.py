"""Packaging. `make` installs the versions of `requirements.lock`, which these ranges admit."""

from setuptools import find_packages, setup

TEST = [
    "pytest>=9,<10",
    "pytest-xdist>=3.8,<4",
    "hypothesis>=6.150,<7",
    "nbclient>=0.11,<1",
    "ipykernel>=7,<8",
    "ruff>=0.17,<0.18",
]

setup(
    name="cpgd_jax",
    version="0.1.0",
    description="Stable rule-based reinforcement learning of language models in JAX (CPGD)",
    license="Apache-2.0",
    python_requires=">=3.11",
    packages=find_packages(include=["cpgd_jax", "cpgd_jax.*"]),
    package_data={"cpgd_jax.report": ["*.html"], "cpgd_jax.stability": ["*.html"]},
    install_requires=[
        "jax>=0.10,<0.11",
        "flax>=0.12,<0.13",
        "optax>=0.2.8,<0.3",
        "orbax-checkpoint>=0.12,<0.13",
        "chex>=0.1.92,<0.2",
        "numpy>=2.4,<3",
        "scipy>=1.17,<2",
        "ml-collections>=1.1,<2",
        "absl-py>=2.4,<3",
        "transformers>=5.20,<6",  # tokenizers with chat templates; its models are the tests' oracle
        "tokenizers>=0.23,<0.24",
        "safetensors>=0.8,<0.9",
        "gguf>=0.19,<0.20",
        "tensorflow-datasets>=4.9.10,<5",  # read without TensorFlow
        "array_record>=0.8.3,<0.9",
        "grain>=0.2.18,<0.3",
        "pyarrow>=22,<27",  # benchmarks published as Parquet
        "math-verify>=0.9,<0.10",  # with latex2sympy2_extended and sympy
        "mpmath>=1.3,<2",
        "pillow>=12,<14",
        "rich>=14,<16",
        "tensorboard>=2.20,<3",
        "matplotlib>=3.10,<4",
        "jinja2>=3.1,<4",  # report.html, chat templates
    ],
    extras_require={
        "test": TEST,
        "parity": ["torch==2.13.0"],
        "tpu": ["jax[tpu]>=0.10,<0.11"],
        "gpu": ["jax[cuda12]>=0.10,<0.11"],
        "wandb": ["wandb>=0.22,<1"],
    },
)

#!/usr/bin/env bash
# Trains on the GPUs of a SLURM allocation, one process a GPU.
#
#   sbatch --nodes=4 launch/slurm.sh \
#     --config=configs/cpgd_qwen25_7b_gsm8k.py --workdir=/shared/runs/qwen25_7b
#
# Submitted in the checkout, which lies on a file system that all nodes share, as --workdir does and
# whatever the config names; after `make install` and `.venv/bin/pip install 'jax[cuda12]'` there.
# At the time limit, or when pre-empted, the run saves (config.checkpoint.grace_s) and ends. The same
# command again resumes, also on another number of nodes; SLURM itself requeues after a node failed.
# Not yet run on a cluster: checked only against a stand-in for srun.
#SBATCH --job-name=cpgd_jax
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x_%j.log
set -euo pipefail

first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export COORDINATOR="$first:$((20000 + SLURM_JOB_ID % 20000))"
# shellcheck disable=SC2016  # expanded by each task, which knows its own number
srun --kill-on-bad-exit=1 bash -c '
  exec .venv/bin/python -m experiments.train --coordinator="$COORDINATOR" \
    --num_processes="$SLURM_NTASKS" --process_id="$SLURM_PROCID" "$@"' train "$@"

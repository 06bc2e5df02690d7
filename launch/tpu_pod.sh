#!/usr/bin/env bash
# Trains on every host of a Cloud TPU slice; the hosts find each other.
#
#   TPU=my-slice ZONE=us-east5-a launch/tpu_pod.sh \
#     --config=configs/cpgd_qwen25_7b_gsm8k.py --workdir=/mnt/shared/runs/qwen25_7b
#
# Copies the committed state of this checkout to all hosts, installs it there and trains. --workdir
# and whatever the config names (models/, data/) lie on a file system that all hosts have mounted,
# such as Filestore. The same command again resumes, also on a slice of another size.
# Not yet run on a slice: checked only against a stand-in for gcloud.
set -euo pipefail
cd "$(dirname "$0")/.."
: "${TPU:?name of the slice}" "${ZONE:?zone of the slice}"

on_all_hosts() {
  gcloud compute tpus tpu-vm ssh "$TPU" --zone="$ZONE" --worker=all --command="$1"
}

checkout=$(mktemp -d)/cpgd_jax.tar.gz
git archive --format=tar.gz --output="$checkout" HEAD
gcloud compute tpus tpu-vm scp "$checkout" "$TPU:" --zone="$ZONE" --worker=all
on_all_hosts "mkdir -p cpgd_jax && tar -xzf cpgd_jax.tar.gz -C cpgd_jax && cd cpgd_jax \
  && make install && .venv/bin/python -m pip install --quiet -e '.[tpu]'"
on_all_hosts "cd cpgd_jax && .venv/bin/python -m experiments.train$(printf ' %q' "$@")"

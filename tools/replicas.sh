#!/usr/bin/env bash
# What stands in deploy/, against the program: Kubernetes' files against its schemas, and replicas
# behind vLLM's router. Keeps the packages in target/replicas: 250 MB.
#
#     tools/replicas.sh target/release/octavo
#     tools/replicas.sh --install      only brings the packages
#     tools/replicas.sh --ray target/release/octavo      under Ray Serve, 500 MB more: by hand
set -euo pipefail
cd "$(dirname "$0")/.."

requirements=tests/deploy/requirements.txt environment=target/replicas
if [[ $1 == --ray ]]; then
  requirements=tests/deploy/requirements-ray.txt environment=target/ray
  shift
  ray=1
fi
if ! cmp -s "$requirements" "$environment/installed.txt"; then
  python3 -m venv "$environment"
  "$environment/bin/pip" install --quiet -r "$requirements"
  cp "$requirements" "$environment/installed.txt"
fi
[[ $1 != --install ]] || exit 0

python=$environment/bin/python
export PYTHONDONTWRITEBYTECODE=1
if [[ -n ${ray-} ]]; then
  exec "$python" tests/deploy/ray_serve.py "$1"
fi
"$python" tests/deploy/manifests.py deploy/k8s
"$python" tests/deploy/replicas.py "$1" "$environment/bin/vllm-router" deploy/k8s

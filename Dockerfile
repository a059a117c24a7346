# raysafl with Ray and MLflow, in the versions of constraints.txt.
# buildah built it on 2026-11-29, on a stand-in for the base below (docs/cluster.md).
# tests/house/test_release.py reads it.
#
#   docker build -t raysafl .
#   mkdir -p results        # or Docker makes it as root, and nobody else can write into it
#   docker run --rm --user "$(id -u):$(id -g)" -e HOME=/tmp -v "$PWD/results:/sweeps/results" raysafl quickstart
#
# By default pip takes torch's build for CUDA, and `docker run` needs --gpus all. For a machine without
# a GPU give --build-arg TORCH="...", with the options that pytorch.org names behind `pip install torch`
# for CPUs; the image is some 4 GB smaller then.
FROM python:3.11-slim-bookworm

ARG TORCH=""
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 RAYSAFL_DATA=/sweeps/data

WORKDIR /opt/raysafl
COPY constraints.txt pyproject.toml README.md LICENSE ./
COPY raysafl ./raysafl
# torch comes first, so that the rest takes the build that is there. ray[default] brings Ray's job server,
# by which Kubernetes gives the sweep to the cluster (deploy/kuberay.yaml).
RUN pip install torch torchvision -c constraints.txt $TORCH \
    && pip install . 'ray[default]' -c constraints.txt

RUN useradd --create-home researcher && mkdir /sweeps && chown researcher /sweeps
USER researcher
WORKDIR /sweeps
ENTRYPOINT ["raysafl"]
CMD ["--help"]

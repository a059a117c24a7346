# raysafl with Ray and MLflow and torch's build for CPUs, in the versions of constraints.txt.
# This file was linted by tests/house/test_release.py, and no image was built from it.
#
#   docker build -t raysafl .
#   docker run --rm -v "$PWD/results:/sweeps/results" raysafl quickstart
#
# For a machine with an NVIDIA GPU, give --build-arg TORCH=https://pypi.org/simple; the image then
# takes some 5 GB more, and `docker run` needs --gpus all.
FROM python:3.11-slim-bookworm

ARG TORCH=https://download.pytorch.org/whl/cpu
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 RAYSAFL_DATA=/sweeps/data

WORKDIR /opt/raysafl
COPY constraints.txt pyproject.toml README.md LICENSE ./
COPY raysafl ./raysafl
# torch comes first, so that the rest takes the build that is there.
RUN pip install torch torchvision -c constraints.txt \
        --index-url "$TORCH" --extra-index-url https://pypi.org/simple \
    && pip install '.[all]' -c constraints.txt

RUN useradd --create-home researcher && mkdir /sweeps && chown researcher /sweeps
USER researcher
WORKDIR /sweeps
ENTRYPOINT ["raysafl"]
CMD ["--help"]

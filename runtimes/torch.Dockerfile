# syntax=docker/dockerfile:1.7
# A learner's base image for torch. ACCELERATOR: cuda (what uv.lock holds: CUDA 13), cuda12, rocm or cpu. Built from the top of the repository:
#   docker build -f runtimes/torch.Dockerfile -t ghcr.io/diloco-operator/learner-torch:0.1.0 .
# hack/images/README.md says how the two images below are pinned by digest.
ARG PYTHON_IMAGE=python:3.13.14-slim-trixie
ARG UV_IMAGE=ghcr.io/astral-sh/uv:0.13.9

FROM ${UV_IMAGE} AS uv

FROM ${PYTHON_IMAGE} AS build
COPY --from=uv /uv /usr/local/bin/uv
WORKDIR /src
COPY pyproject.toml uv.lock ./
COPY LICENSE runtimes/LICENSE
COPY runtimes/pyproject.toml runtimes/hatch_build.py runtimes/README.md runtimes/
COPY hack/images/install.sh hack/images/install.sh
COPY runtimes/diloco runtimes/diloco
ARG ACCELERATOR=cuda
RUN --mount=type=cache,target=/root/.cache/uv \
    hack/images/install.sh torch /opt/diloco --python /usr/local/bin/python3.13 --accelerator "${ACCELERATOR}"

FROM ${PYTHON_IMAGE}
LABEL org.opencontainers.image.title="DiLoCo learner, torch" \
      org.opencontainers.image.source="https://github.com/diloco-operator/diloco-operator" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="0.1.0"
# Nothing in a running container installs anything.
RUN rm -rf /usr/local/bin/pip* /usr/local/bin/idle* /usr/local/lib/python3.13/ensurepip /usr/local/lib/python3.13/site-packages/pip*
# torch.compile and Triton compile when a program runs, and need a C++ compiler for that.
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
COPY --from=build /opt/diloco /opt/diloco
# The root file system is read-only where the pods run: no bytecode is written, and what must be written goes to /tmp.
ENV PATH=/opt/diloco/bin:/usr/local/nvidia/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    HOME=/tmp
# GKE mounts the driver of its nodes at /usr/local/nvidia and leaves it to the image to look there; NVIDIA's container toolkit needs neither.
# See https://cloud.google.com/kubernetes-engine/docs/how-to/gpus#cuda.
ENV LD_LIBRARY_PATH=/usr/local/nvidia/lib64 \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
# User 65532 has no name, of which torch.compile would make the folder of what it compiles.
ENV TORCHINDUCTOR_CACHE_DIR=/tmp/torchinductor
USER 65532:65532
WORKDIR /tmp
ENTRYPOINT ["python"]
CMD ["-m", "diloco.trainers.byte_lm_torch"]

# syntax=docker/dockerfile:1.7
# The syncer: neither a framework nor a Kubernetes client. Built from the top of the repository:
#   docker build -f runtimes/syncer.Dockerfile -t ghcr.io/diloco-operator/syncer:0.1.0 .
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
RUN --mount=type=cache,target=/root/.cache/uv \
    hack/images/install.sh syncer /opt/diloco --python /usr/local/bin/python3.13

FROM ${PYTHON_IMAGE}
LABEL org.opencontainers.image.title="DiLoCo syncer" \
      org.opencontainers.image.source="https://github.com/diloco-operator/diloco-operator" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="0.1.0"
# Nothing in a running container installs anything.
RUN rm -rf /usr/local/bin/pip* /usr/local/bin/idle* /usr/local/lib/python3.13/ensurepip /usr/local/lib/python3.13/site-packages/pip*
COPY --from=build /opt/diloco /opt/diloco
# The root file system is read-only where the pods run: no bytecode is written, and what must be written goes to /tmp.
ENV PATH=/opt/diloco/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    HOME=/tmp
USER 65532:65532
WORKDIR /tmp
ENTRYPOINT ["python", "-m", "diloco.syncer"]

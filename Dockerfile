# hadolint global ignore=DL3008
#
# (DL3008 asks for pinned packages. Debian keeps no older versions, so a pin would break the build at the next update.)
#
# Images of Volery (docs/operate/containers.md):
#
#   docker build --target node -t volery:node .             a rollout node on the CPU, 2 GB
#   docker build --target node-cuda -t volery:node-cuda .   a rollout node with vLLM, for NVIDIA GPUs
#   docker build --target learner -t volery:learner .       a learner, with CUDA
#
# Each runs as user 1000 with a read-only root file system. All that it writes is in /data, and in a /tmp in memory.

ARG PYTHON_IMAGE=python:3.12-slim-bookworm

# --- the wheel, built from this checkout ------------------------------------------------------------------------------

FROM ${PYTHON_IMAGE} AS build
# fastecdsa, which libp2p needs, has no wheel for Linux: it is compiled here, and the images need GMP alone.
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev libgmp-dev \
    && rm -rf /var/lib/apt/lists/*
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
COPY . .
RUN python3 -m venv /opt/volery \
    && /opt/volery/bin/pip wheel --no-deps --wheel-dir /wheels .

# --- environments ----------------------------------------------------------------------------------------------------

FROM build AS node-environment
# Empty: take torch from PyPI, with 3 GB of CUDA libraries.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN if [ -n "$TORCH_INDEX" ]; then \
        /opt/volery/bin/pip install --no-deps -c constraints.txt --index-url "$TORCH_INDEX" torch; \
    fi \
    && /opt/volery/bin/pip install -c constraints.txt "$(echo /wheels/*.whl)[transformers]"

FROM build AS node-cuda-environment
# vLLM pins its own torch, so constraints.txt does not apply. The release is that of node/engine/vllm_install.py.
RUN /opt/volery/bin/pip install "$(echo /wheels/*.whl)[vllm]" "vllm==0.32.0"

FROM build AS learner-environment
ARG TORCH_INDEX=
RUN if [ -n "$TORCH_INDEX" ]; then \
        /opt/volery/bin/pip install --no-deps -c constraints.txt --index-url "$TORCH_INDEX" torch; \
    fi \
    && /opt/volery/bin/pip install -c constraints.txt "$(echo /wheels/*.whl)[learner,tasks]"

# --- what all images share -------------------------------------------------------------------------------------------

FROM ${PYTHON_IMAGE} AS base
RUN apt-get update \
    && apt-get install -y --no-install-recommends libgmp10 \
    && rm -rf /var/lib/apt/lists/* \
    && mkdir --mode=0777 /data
# Caches lie in the volume, because the root file system is read-only. USER is for libraries that ask for a name where
# the user id has none.
ENV PATH=/opt/volery/bin:$PATH HOME=/data USER=volery VOLERY_HOME=/data PYTHONDONTWRITEBYTECODE=1
WORKDIR /data
VOLUME /data
USER 1000:1000
STOPSIGNAL SIGTERM
# Not the live page's /health: a question there would start the page's process every minute.
HEALTHCHECK --interval=60s --timeout=30s --start-period=600s \
    CMD ["sh", "-c", "volery status --json | grep '\"doing\": ' | grep -qv '\"not running'"]
ENTRYPOINT ["volery"]
CMD ["--help"]

# --- the images ------------------------------------------------------------------------------------------------------

FROM base AS node
COPY --from=node-environment /opt/volery /opt/volery

FROM base AS node-cuda
USER 0:0
# Triton compiles kernels at run time.
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
USER 1000:1000
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
COPY --from=node-cuda-environment /opt/volery /opt/volery

FROM base AS learner
USER 0:0
# The sandbox of the task `code`.
RUN apt-get update \
    && apt-get install -y --no-install-recommends bubblewrap \
    && rm -rf /var/lib/apt/lists/*
USER 1000:1000
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
EXPOSE 4001
COPY --from=learner-environment /opt/volery /opt/volery

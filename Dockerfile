# benchctl with a llama-server that is built in the image; see docs/install.md.
#
#   docker build -t benchctl .
#   docker build -t benchctl-cuda --build-arg BASE=nvidia/cuda:12.8.1-devel-ubuntu24.04 --build-arg BACKEND=cuda .
ARG BASE=ubuntu:24.04
FROM ${BASE}

RUN apt-get update -qq \
 && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends \
      ca-certificates g++ libgomp1 python3 python3-venv \
 && rm -rf /var/lib/apt/lists/*

COPY pyproject.toml README.md LICENSE /src/
COPY benchctl /src/benchctl
COPY recipes /src/recipes
COPY prompts /src/prompts
RUN python3 -m venv /opt/benchctl \
 && /opt/benchctl/bin/python -m pip install --no-cache-dir --quiet "/src[build]" \
 && rm -rf /src

ENV PATH=/opt/benchctl/bin:$PATH BENCHCTL_CACHE=/opt/benchctl-cache
ARG BACKEND=cpu
ARG CMAKE_ARGS=
# A CUDA engine is built without a GPU; to be tried on the processor it needs a driver to load, and the toolkit's stub does.
RUN if [ "$BACKEND" = cuda ]; then \
      mkdir /tmp/stubs && ln -s /usr/local/cuda/lib64/stubs/libcuda.so /tmp/stubs/libcuda.so.1 \
      && export LD_LIBRARY_PATH=/tmp/stubs; fi \
 && benchctl engines install llama.cpp --${BACKEND} \
 && rm -rf "$BENCHCTL_CACHE/sdists" \
 && chmod -R a+rX "$BENCHCTL_CACHE"

WORKDIR /work
ENTRYPOINT ["benchctl"]

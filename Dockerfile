# benchctl with a llama-server that is built in the image; see docs/install.md.
#
#   docker build -t benchctl .
#   docker build -t benchctl-cuda --build-arg BASE=nvidia/cuda:12.8.1-devel-ubuntu24.04 --build-arg BACKEND=cuda .
# A release also gives --build-arg RELEASE=1 --build-arg BASE_DIGEST=sha256:…, that of the base.
ARG BASE=ubuntu:24.04
ARG BASE_DIGEST=
FROM ${BASE}${BASE_DIGEST:+@${BASE_DIGEST}}

ARG BASE_DIGEST
ARG RELEASE=
RUN if [ -n "$RELEASE" ] && [ -z "$BASE_DIGEST" ]; then echo "A release needs --build-arg BASE_DIGEST=sha256:…" >&2; exit 1; fi

RUN apt-get update -qq \
 && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends \
      ca-certificates g++ libgomp1 python3 python3-venv \
 && rm -rf /var/lib/apt/lists/*

COPY pyproject.toml README.md LICENSE docker.lock /src/
COPY .ci/package_readme.py /src/.ci/
COPY benchctl /src/benchctl
COPY recipes /src/recipes
COPY prompts /src/prompts
COPY docs /src/docs
RUN python3 -m venv /opt/benchctl \
 && /opt/benchctl/bin/python -m pip install --no-cache-dir --quiet --require-hashes --requirement /src/docker.lock \
 && /opt/benchctl/bin/python -m pip install --no-cache-dir --quiet --no-deps --no-build-isolation --no-index /src \
 && rm -rf /src

# Any other user (docker run --user) may add to the cache and to /work, and changes nothing that is there.
RUN useradd --create-home --shell /usr/sbin/nologin benchctl \
 && install -d -o benchctl -g benchctl -m 1777 /opt/benchctl-cache /work
ENV PATH=/opt/benchctl/bin:$PATH BENCHCTL_CACHE=/opt/benchctl-cache
USER benchctl
ARG BACKEND=cpu
ARG CMAKE_ARGS=
# A CUDA engine is built without a GPU; to be tried on the processor it needs a driver to load, and the toolkit's stub does.
RUN if [ "$BACKEND" = cuda ]; then \
      mkdir /tmp/stubs && ln -s /usr/local/cuda/lib64/stubs/libcuda.so /tmp/stubs/libcuda.so.1 \
      && export LD_LIBRARY_PATH=/tmp/stubs; fi \
 && benchctl engines install llama.cpp --${BACKEND} \
 && rm -rf "$BENCHCTL_CACHE/sdists" \
 && chmod -R a+rX "$BENCHCTL_CACHE"/*

WORKDIR /work
ENTRYPOINT ["benchctl"]

# The image of `magnitude serve`; built from the repository's root:
#
#     docker build -t magnitude .
#     docker run --shm-size 2g -p 50051:50051 -v /models:/models:ro magnitude serve --host 0.0.0.0 --model /models/M.gguf
#
# BASE_IMAGE is any Debian of this release or newer. pip's index and certificate may be given: --build-arg PIP_INDEX_URL=…
ARG BASE_IMAGE=debian:12-slim

# Builds the wheels once, installs them where they will stand, and writes down what is in there.
FROM ${BASE_IMAGE} AS build
ARG PIP_INDEX_URL
ARG PIP_CERT
ARG DEBIAN_FRONTEND=noninteractive
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
# Versions are the base's to choose, which may be any Debian: none is pinned here or below.
# hadolint ignore=DL3008
RUN apt-get update -qq && apt-get install -qq -y --no-install-recommends g++ python3-dev python3-venv
WORKDIR /source
COPY pyproject.toml LICENSE README.md ./
COPY clients/python clients/python
COPY magnitude_service magnitude_service
RUN python3 -m venv /build \
    && /build/bin/pip wheel --quiet --no-cache-dir --wheel-dir /wheels ./clients/python .
RUN python3 -m venv /opt/magnitude \
    && /opt/magnitude/bin/pip install --quiet --no-cache-dir --no-index --find-links /wheels magnitude-service \
    && find /opt/magnitude -type d -name tests -path '*/numpy/*' -prune -exec rm -r {} +
# The native modules contain nanobind and its hash table: their licences travel with them.
RUN /build/bin/pip install --quiet --no-cache-dir 'cyclonedx-bom==7.1.0' 'nanobind>=2.4' \
    && mkdir -p /opt/magnitude/share/licences/nanobind \
    && cp LICENSE /opt/magnitude/share/licences/ \
    && find /build/lib -ipath '*nanobind*' -iname '*licen*' -type f \
        -exec cp --backup=numbered -t /opt/magnitude/share/licences/nanobind {} + \
    && /build/bin/cyclonedx-py environment --gather-license-texts --output-reproducible --output-format JSON \
        --output-file /opt/magnitude/share/sbom.cdx.json /opt/magnitude/bin/python

FROM ${BASE_IMAGE}
ARG DEBIAN_FRONTEND=noninteractive
LABEL org.opencontainers.image.title=magnitude \
      org.opencontainers.image.description="A typed gRPC service for GGUF language models" \
      org.opencontainers.image.licenses=Apache-2.0
# hadolint ignore=DL3008
RUN apt-get update -qq \
    && apt-get install -qq -y --no-install-recommends ca-certificates libstdc++6 python3 \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/* \
    && groupadd --gid 10001 magnitude \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin magnitude \
    && install -d -o magnitude -g magnitude /var/cache/magnitude /var/lib/magnitude
COPY --from=build /opt/magnitude /opt/magnitude
# No variable here is a setting of the server: those would win over its config file.
ENV PATH=/opt/magnitude/bin:/usr/local/bin:/usr/bin:/bin \
    HOME=/tmp \
    XDG_CACHE_HOME=/var/cache \
    PIP_NO_CACHE_DIR=1 \
    PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
WORKDIR /var/lib/magnitude
EXPOSE 50051 9090
# A model may take long to load: until then it is `starting`, not `unhealthy`.
HEALTHCHECK --start-period=15m --interval=10s --timeout=5s --retries=3 CMD ["magnitude", "health", "--timeout", "4000"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["magnitude"]
CMD ["serve", "--host", "0.0.0.0"]

# The gateway with all libraries, and bubblewrap for sandboxes on its own machine, as a user of its own.
#
# The base image is named by tag, because a digest has to be read from the registry that you trust:
#
#   docker buildx imagetools inspect python:3.11-slim-bookworm --format '{{.Manifest.Digest}}'
#   docker build --build-arg BASE=python:3.11-slim-bookworm@sha256:... -t dovecote .
#
# The image runs with a read-only root. Writable are the volume /data and a tmpfs at /tmp; see compose.yaml and
# deploy/helm/dovecote.
ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS build
WORKDIR /src
RUN python3 -m venv /opt/dovecote
COPY requirements.lock ./
RUN /opt/dovecote/bin/pip install --no-cache-dir --require-hashes -r requirements.lock
COPY pyproject.toml README.md LICENSE ./
COPY gateway gateway
COPY channels channels
COPY sandbox sandbox
COPY delivery delivery
COPY egress egress
COPY dovecote dovecote
RUN /opt/dovecote/bin/pip install --no-cache-dir --no-deps . \
 && /opt/dovecote/bin/pip uninstall --yes pip

FROM ${BASE}
LABEL org.opencontainers.image.title="Dovecote" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN apt-get update \
 && apt-get install -y --no-install-recommends bubblewrap curl git nodejs passt tini \
 && rm -rf /var/lib/apt/lists/* \
 && groupadd --gid 10001 dovecote \
 && useradd --uid 10001 --gid 10001 --home-dir /data --no-create-home --shell /usr/sbin/nologin dovecote \
 && install --directory --mode 0700 --owner dovecote --group dovecote /data
COPY --from=build /opt/dovecote /opt/dovecote
ENV PATH=/opt/dovecote/bin:$PATH \
    DOVECOTE_DATA_DIR=/data \
    PYTHONDONTWRITEBYTECODE=1
# By number, so that Kubernetes can check `runAsNonRoot`.
USER 10001:10001
WORKDIR /
VOLUME ["/data"]
EXPOSE 8080
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
  CMD ["curl", "-fsS", "http://127.0.0.1:8080/readyz"]
ENTRYPOINT ["tini", "--", "dovecote"]
CMD ["serve", "--host", "0.0.0.0", "--port", "8080"]

# The gateway with bubblewrap for its sandboxes, and all libraries, as a user of its own; see compose.yaml.
FROM python:3.11-slim-bookworm
RUN apt-get update \
 && apt-get install -y --no-install-recommends bubblewrap curl git nodejs passt tini \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --system --uid 10001 --home-dir /data --shell /usr/sbin/nologin dovecote \
 && install --directory --mode 0700 --owner dovecote /data
WORKDIR /src
COPY . .
RUN pip install --no-cache-dir --require-hashes -r requirements.lock \
 && pip install --no-cache-dir --no-deps .
USER dovecote
WORKDIR /
ENTRYPOINT ["tini", "--", "dovecote"]
CMD ["serve", "--data", "/data", "--host", "0.0.0.0", "--port", "8080"]

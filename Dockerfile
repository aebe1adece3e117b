# The gateway with bubblewrap for its sandboxes, and the model libraries; see compose.yaml for what it needs beside it.
FROM python:3.11-slim-bookworm
RUN apt-get update \
 && apt-get install -y --no-install-recommends bubblewrap curl git nodejs passt tini \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
RUN pip install --no-cache-dir -c constraints.txt ".[model]"
WORKDIR /
ENTRYPOINT ["tini", "--", "dovecote"]
CMD ["serve", "--data", "/data", "--host", "0.0.0.0", "--port", "8080"]

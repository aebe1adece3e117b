# In place of python:3.11-slim-bookworm, where no registry is reached: Debian's own python, a pip as new as the
# public image's (Debian's refuses an extra in a file with hashes), and the authorities that this machine trusts.
FROM dovecote-test-debian:1
COPY ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
ENV PIP_CERT=/etc/ssl/certs/ca-certificates.crt PIP_DEFAULT_TIMEOUT=120 PIP_RETRIES=10
RUN rm /usr/share/python-wheels/pip-*.whl \
 && pip download --no-deps --dest /usr/share/python-wheels pip==24.0
CMD ["python3"]

# In place of postgres: Debian's server, with the variables of the public image.
FROM dovecote-test-base:1
RUN apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends postgresql \
 && rm -rf /var/lib/apt/lists/* /var/lib/postgresql/* \
 && install --directory --mode 0700 --owner postgres --group postgres /var/lib/postgresql/data
COPY postgres.sh /usr/local/bin/postgres.sh
VOLUME ["/var/lib/postgresql/data"]
ENTRYPOINT ["sh", "/usr/local/bin/postgres.sh"]

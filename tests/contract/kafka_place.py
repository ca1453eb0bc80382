"""The conformance kit's view of Kafka: a real broker behind a relay, read with another library."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from broker.kafka_broker import KafkaBroker
from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, Producer, TopicPartition

from kvevents_core.backend import Sink
from kvevents_core.naming import StreamId
from kvevents_core.testing import Observed, Observer, Place, TcpRelay

BROKER_LIMIT_BYTES = 300_000
"""``message.max.bytes`` of the broker these places are on."""


class KafkaObserver(Observer):
    """librdkafka reading one partition from its beginning, past the relay."""

    def __init__(self, connection: dict[str, str], topic: str, partition: int, key: bytes) -> None:
        self._key = key
        self._consumer = Consumer(
            {
                **connection,
                "group.id": "observer",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 20,
            }
        )
        self._consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING)])

    def poll(self, timeout_s: float) -> Sequence[Observed]:
        """Return what the partition holds of the stream's key."""
        messages = self._consumer.consume(500, timeout_s)
        return [_observed(m) for m in messages if not m.error() and m.key() == self._key]

    def close(self) -> None:
        """Leave the broker."""
        self._consumer.close()


def _observed(message: Message) -> Observed:
    headers = dict(message.headers() or [])
    payload = message.value() or b""
    try:
        seq, epoch = int(headers["kvevents-seq"]), int(headers["kvevents-epoch"])
    except (KeyError, TypeError, ValueError):
        return Observed(-1, payload, flaw=f"headers {headers}")
    if headers.get("content-type") != b"application/msgpack":
        return Observed(seq, payload, epoch, flaw=f"content-type of {headers}")
    return Observed(seq, payload, epoch)


class KafkaPlace(Place):
    """A topic of the test's own.

    Args:
        broker: A broker whose PLAINTEXT listener is advertised as the relay's.
        relay: The relay.
    """

    client_modules = ("kafka",)
    secrets: Mapping[str, str] = {"ssl_password": "pass-phrase-of-no-key"}
    patience_s = 20.0
    bad_settings = (
        {"bootstrap_servers": "kafka://host:9092"},
        {"bootstrap_servers": []},
        {"bootstrap_servers": "host:99999"},
        {"topic": "kv events"},
        {"topic": "kv-events.{rank}"},
        {"topic": "t" * 250},
        {"acks": "some"},
        {"compression_type": "rar"},
        {"max_request_size": "large"},
        {"security_protocol": "SASL_SSL"},
        {"sasl_plain_username": "somebody"},
        {"kafka_options": {"acks": 0}},
        {"kafka_options": {"group_id": "g"}},
        {"kafka_options": {"no_such_option": 1}},
    )

    def __init__(self, broker: KafkaBroker, relay: TcpRelay) -> None:
        super().__init__()
        self.peer = relay
        self.topic = f"conformance-{self.instance}"
        self._direct = {
            "bootstrap.servers": broker.bootstrap("ssl"),
            "security.protocol": "SSL",
            "ssl.ca.location": str(broker.ca_file),
        }
        self.settings: dict[str, Any] = {
            "bootstrap_servers": f"127.0.0.1:{relay.port}",
            "topic": self.topic,
            "owner_check_s": 0.3,
        }
        # What cannot be compressed meets the broker's limit, which is below the client's.
        self.refused_payload = os.urandom(BROKER_LIMIT_BYTES + 10_000)

    def observe(self, sink: Sink, stream: StreamId) -> KafkaObserver:
        """Read the partition that the sink says it writes to."""
        facts = sink.describe()
        return KafkaObserver(
            self._direct, facts["topic"], facts["partition"], facts["key"].encode()
        )

    def corrupt(self, stream: StreamId, sink: Sink) -> bool:
        """Write records without headers, with wrong ones, and a tombstone."""
        producer = Producer({**self._direct, "linger.ms": 0})
        facts = sink.describe()
        place = {"topic": facts["topic"], "partition": facts["partition"]}
        good = [("kvevents-stream", facts["key"].encode()), ("kvevents-epoch", b"1")]
        producer.produce(**place, value=b"no headers")
        producer.produce(**place, value=b"x", headers=[*good, ("kvevents-seq", b"-1")])
        producer.produce(**place, value=b"x", headers=[("kvevents-stream", b"\xff/x")])
        producer.produce(**place, value=None, key=b"k", headers=[*good, ("kvevents-seq", b"0")])
        return not producer.flush(10)

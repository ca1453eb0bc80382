"""librdkafka's mock cluster, from inside the confluent-kafka wheel, for faults on demand. Not Kafka.

Functions of librdkafka 2.16, ``rdkafka_mock.h``. kafka-python needs ``api_version`` [2, 3] with it.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from types import TracebackType
from typing import Self

import confluent_kafka

_PRODUCER = 0
_TEXT_BYTES = 512
PRODUCE = 0
"""Kafka protocol, key of the Produce request."""
METADATA = 3


class MockCluster:
    """Brokers inside this process that fail as they are told."""

    def __init__(self, brokers: int = 1) -> None:
        self._library = _library()
        text = ctypes.create_string_buffer(_TEXT_BYTES)
        conf = self._library.rd_kafka_conf_new()
        self._handle = self._library.rd_kafka_new(_PRODUCER, conf, text, _TEXT_BYTES)
        assert self._handle, text.value
        self._cluster = self._library.rd_kafka_mock_cluster_new(self._handle, brokers)
        assert self._cluster

    @property
    def bootstrap(self) -> str:
        """Return ``host:port`` of the brokers, comma-separated."""
        found: bytes = self._library.rd_kafka_mock_cluster_bootstraps(self._cluster)
        return found.decode()

    def create_topic(self, topic: str, partitions: int = 1, replicas: int = 1) -> None:
        """Create ``topic``."""
        self._check(
            self._library.rd_kafka_mock_topic_create(
                self._cluster, topic.encode(), partitions, replicas
            )
        )

    def fail_next(self, api_key: int, *errors: int) -> None:
        """Answer the next requests of ``api_key`` with ``errors``; -195 closes the connection."""
        codes = (ctypes.c_int * len(errors))(*errors)
        self._library.rd_kafka_mock_push_request_errors_array(
            self._cluster, api_key, len(errors), codes
        )

    def set_down(self, broker: int) -> None:
        """Take ``broker`` (1, 2, ...) down."""
        self._check(self._library.rd_kafka_mock_broker_set_down(self._cluster, broker))

    def set_up(self, broker: int) -> None:
        """Bring it back."""
        self._check(self._library.rd_kafka_mock_broker_set_up(self._cluster, broker))

    def set_round_trip(self, broker: int, milliseconds: int) -> None:
        """Delay every answer of ``broker``."""
        self._check(
            self._library.rd_kafka_mock_broker_set_rtt(self._cluster, broker, milliseconds)
        )

    def set_leader(self, topic: str, partition: int, broker: int) -> None:
        """Make ``broker`` the leader of a partition."""
        self._check(
            self._library.rd_kafka_mock_partition_set_leader(
                self._cluster, topic.encode(), partition, broker
            )
        )

    def close(self) -> None:
        """End the brokers."""
        self._library.rd_kafka_mock_cluster_destroy(self._cluster)
        self._library.rd_kafka_destroy(self._handle)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _check(self, code: int) -> None:
        assert code == 0, f"librdkafka error {code}"


def _library() -> ctypes.CDLL:
    folder = Path(confluent_kafka.__file__).parents[1] / "confluent_kafka.libs"
    (path,) = folder.glob("librdkafka-*.so*")
    library = ctypes.CDLL(str(path))
    pointer, text, number = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int
    for name, result, arguments in (
        ("rd_kafka_conf_new", pointer, []),
        ("rd_kafka_new", pointer, [number, pointer, ctypes.c_char_p, ctypes.c_size_t]),
        ("rd_kafka_destroy", None, [pointer]),
        ("rd_kafka_mock_cluster_new", pointer, [pointer, number]),
        ("rd_kafka_mock_cluster_destroy", None, [pointer]),
        ("rd_kafka_mock_cluster_bootstraps", text, [pointer]),
        ("rd_kafka_mock_topic_create", number, [pointer, text, number, number]),
        (
            "rd_kafka_mock_push_request_errors_array",
            None,
            [pointer, ctypes.c_int16, ctypes.c_size_t, ctypes.POINTER(number)],
        ),
        ("rd_kafka_mock_broker_set_down", number, [pointer, ctypes.c_int32]),
        ("rd_kafka_mock_broker_set_up", number, [pointer, ctypes.c_int32]),
        ("rd_kafka_mock_broker_set_rtt", number, [pointer, ctypes.c_int32, number]),
        (
            "rd_kafka_mock_partition_set_leader",
            number,
            [pointer, text, ctypes.c_int32, ctypes.c_int32],
        ),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library

"""Fixtures of the real brokers, each from its own module."""

from broker.nats_fixtures import nats_server, nats_servers, nats_url, tenant

__all__ = ["nats_server", "nats_servers", "nats_url", "tenant"]

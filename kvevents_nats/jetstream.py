"""The JetStream stream behind a subject: created or checked, never changed; its last record.

Requests go straight to the JSON API (nats-server 2.15, ``$JS.API.…``): a few calls, and the error
codes stay visible. Loop thread only.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import Any, Final

from nats.errors import NoRespondersError

from kvevents_core import StreamId
from kvevents_nats.connection import Connection
from kvevents_nats.settings import NatsSettings
from kvevents_nats.subjects import HeaderDecoder, Place, bound_subject, covers, stream_name

ASK_S: Final = 3.0
"""Longest wait for an answer of the API."""
NOT_FOUND: Final = 10059
NO_MESSAGE: Final = 10037
TOO_LARGE: Final = 10054
_OVERLAP: Final = 10065
_EXISTS: Final = 10058
_NS: Final = 1_000_000_000


class ApiError(Exception):
    """JetStream answered with an error; ``code`` is its ``err_code``."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class StreamError(Exception):
    """The stream cannot be used as it is; the text says what to do."""


@dataclass(frozen=True, slots=True)
class StreamFacts:
    """What a stream says about itself."""

    name: str
    created: str
    """When it was created: another value means another stream of the same name."""
    subjects: tuple[str, ...]
    config: dict[str, Any]
    first_seq: int
    last_seq: int

    @property
    def max_message_bytes(self) -> int | None:
        """Return the stream's own limit, headers included; None if it has none."""
        size = int(self.config.get("max_msg_size", -1))
        return size if size >= 0 else None


class JetStreamApi:
    """Asks the JetStream API over one client.

    Args:
        link: The connection that ``nc`` belongs to; it knows of refused permissions.
        nc: The connected client.
        domain: JetStream domain, empty for the server's own.
    """

    def __init__(self, link: Connection, nc: Any, domain: str) -> None:
        self._link = link
        self._nc = nc
        self.prefix = f"$JS.{domain}.API" if domain else "$JS.API"

    async def ask(self, verb: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the JSON answer.

        Raises:
            ApiError: JetStream refused; also (code 503) if nobody answers: JetStream is off.
            NotPermittedError: The user may not ask this.
        """
        message = await self.request(verb, body)
        answer: dict[str, Any] = json.loads(message.data)
        error = answer.get("error")
        if error:
            raise ApiError(str(error.get("description", error)), int(error.get("err_code", 0)))
        return answer

    async def request(self, verb: str, body: dict[str, Any] | None = None) -> Any:
        """Return the raw answer; raises like ``ask`` but for errors in the answer's body."""
        subject = f"{self.prefix}.{verb}"
        payload = json.dumps(body).encode() if body is not None else b""
        try:
            return await self._link.ask(self._nc.request(subject, payload, timeout=ASK_S), subject)
        except NoRespondersError:
            raise ApiError(
                "JetStream is not available: off, or not for this account", 503
            ) from None

    async def facts(self, name: str) -> StreamFacts | None:
        """Return what stream ``name`` says about itself, or None if there is none."""
        try:
            answer = await self.ask(f"STREAM.INFO.{name}")
        except ApiError as exc:
            if exc.code == NOT_FOUND:
                return None
            raise
        return _facts(answer)

    async def create(self, config: dict[str, Any]) -> StreamFacts:
        """Create a stream and return its facts."""
        return _facts(await self.ask(f"STREAM.CREATE.{config['name']}", config))

    async def last_place(self, name: str, subject: str, *, direct: bool) -> Place | None:
        """Return the place of the last record on ``subject`` in stream ``name``; None if it has none.

        A message that is no record of ours counts as none. ``direct`` asks by the API whose subject
        holds ``subject``, so that permissions can tell tenants apart; the stream must allow it.
        """
        if direct:
            message = await self.request(f"DIRECT.GET.{name}.{subject}")
            headers = dict(message.headers or {})
            if headers.get("Status") == "404":
                return None
        else:
            found = await self._stored_headers(name, subject)
            if found is None:
                return None
            headers = found
        try:
            return HeaderDecoder().decode(headers)
        except ValueError:
            return None

    async def _stored_headers(self, name: str, subject: str) -> dict[str, str] | None:
        try:
            answer = await self.ask(f"STREAM.MSG.GET.{name}", {"last_by_subj": subject})
        except ApiError as exc:
            if exc.code == NO_MESSAGE:
                return None
            raise
        return _parse_headers(answer["message"].get("hdrs", ""))


async def open_stream(
    api: JetStreamApi, settings: NatsSettings, stream: StreamId, subject: str
) -> tuple[StreamFacts, list[str]]:
    """Return the stream that takes ``subject``, created if need be, and how it differs from wishes.

    Raises:
        StreamError: No stream takes the subject, and none may or can be created.
        ApiError, NotPermittedError: JetStream or the user's permissions forbid looking.
    """
    name = stream_name(settings.stream, stream.tenant, stream.model)
    facts = await api.facts(name)
    if facts is None:
        facts = await _create(api, settings, name, stream, subject)
    if not any(covers(bound, subject) for bound in facts.subjects):
        raise StreamError(
            f"stream {name!r} is bound to {', '.join(facts.subjects)}, not to {subject!r}: add the "
            "subject to the stream, or set `stream` to one that has it"
        )
    return facts, differences(settings, facts.config)


async def _create(
    api: JetStreamApi, settings: NatsSettings, name: str, stream: StreamId, subject: str
) -> StreamFacts:
    if not settings.create_stream:
        raise StreamError(
            f"no stream is bound to {subject!r}: there is no stream {name!r} and create_stream is off"
        )
    bound = bound_subject(settings.subject, settings.stream, stream)
    try:
        return await api.create(wished_config(settings, name, bound))
    except ApiError as exc:
        if exc.code == _EXISTS:  # another rank was quicker, with other wishes
            facts = await api.facts(name)
            if facts is not None:
                return facts
        advice = ""
        if exc.code == _OVERLAP:
            advice = "; set `stream` to the stream that holds these subjects"
        raise StreamError(
            f"no stream is bound to {subject!r}, and {name!r} on {bound!r} cannot be created: "
            f"{exc}{advice}"
        ) from exc


def wished_config(settings: NatsSettings, name: str, bound: str) -> dict[str, Any]:
    """Return the configuration of a new stream: always bounded in age and bytes."""
    return {
        "name": name,
        "description": "KV-cache events (kvevents)",
        "subjects": [bound],
        "retention": "limits",
        "discard": "old",
        "allow_direct": True,
        **_wishes(settings),
    }


def differences(settings: NatsSettings, config: dict[str, Any]) -> list[str]:
    """Return one phrase per value of the stream that is not what the settings wish."""
    wishes = {"retention": "limits", "discard": "old", **_wishes(settings)}
    found = []
    for key, wish in wishes.items():
        value = config.get(key)
        if value != wish:
            unit = " s" if key in ("max_age", "duplicate_window") else ""
            shown = [v / _NS if unit and isinstance(v, int) else v for v in (value, wish)]
            found.append(f"{key} is {shown[0]}{unit}, not {shown[1]}{unit}")
    return found


def _wishes(settings: NatsSettings) -> dict[str, Any]:
    age_s = settings.stream_max_age_s
    return {
        "max_age": int(age_s * _NS),
        "max_bytes": settings.stream_max_bytes,
        "storage": settings.stream_storage,
        "num_replicas": settings.stream_replicas,
        # The server refuses a window longer than the age.
        "duplicate_window": int(min(settings.duplicate_window_s, age_s) * _NS),
    }


def _facts(answer: dict[str, Any]) -> StreamFacts:
    config, state = answer["config"], answer["state"]
    return StreamFacts(
        name=config["name"],
        created=str(answer.get("created", "")),
        subjects=tuple(config.get("subjects") or ()),
        config=config,
        first_seq=int(state.get("first_seq", 0)),
        last_seq=int(state.get("last_seq", 0)),
    )


def _parse_headers(encoded: str) -> dict[str, str]:
    """Return the headers of a stored message; ``encoded`` is their base64 text."""
    lines = base64.b64decode(encoded).decode("utf-8", "replace").split("\r\n")[1:]
    pairs = (line.partition(":") for line in lines if ":" in line)
    return {name.strip(): value.strip() for name, _, value in pairs}

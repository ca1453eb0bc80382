"""Backends and settings that break a promise before anything is sent."""

from __future__ import annotations

import threading
from typing import Any, ClassVar

from contract.faults.planting import plant
from contract.memory_place import MemoryPlace
from pydantic import Field
from pydantic_settings import SettingsConfigDict

from kvevents_core.backend import Capabilities
from kvevents_core.memory import MemoryBackend, MemorySettings, MemorySink


class _Faulty(MemoryBackend):
    name: ClassVar[str] = "faulty"


@plant("C7")
class RefusesOnOtherRanksOnly(_Faulty):
    class Lenient(MemorySettings):
        """Faulty."""

        capacity: int = 1000

    settings_model = Lenient

    def open_sink(self, settings: Any, stream: Any) -> MemorySink:
        if settings.capacity < 1 and stream.rank > 0:
            raise ValueError("capacity must be at least 1")
        return super().open_sink(settings, stream)


@plant("C7")
class RefusesInOtherWordsOnEachRank(_Faulty):
    class Lenient(MemorySettings):
        """Faulty."""

        capacity: int = 1000

    settings_model = Lenient

    def open_sink(self, settings: Any, stream: Any) -> MemorySink:
        if settings.capacity < 1:
            raise ValueError(f"rank {stream.rank}: capacity must be at least 1")
        return super().open_sink(settings, stream)


@plant("C10")
class StartsAThreadWhenConstructed(_Faulty):
    def __init__(self) -> None:
        self._watching = threading.Timer(4.0, bool)
        self._watching.daemon = True
        self._watching.start()


@plant("C11")
class ShadowsAKeyOfCore(_Faulty):
    class Shadowing(MemorySettings):
        """Faulty."""

        tenant: str = "mine"

    settings_model = Shadowing


@plant("C11")
class SwallowsUnknownKeys(_Faulty):
    class Lenient(MemorySettings):
        """Faulty."""

        model_config = SettingsConfigDict(extra="ignore")

    settings_model = Lenient


@plant("C11")
class LetsSettingsBeChanged(_Faulty):
    class Mutable(MemorySettings):
        """Faulty."""

        model_config = SettingsConfigDict(frozen=False)

    settings_model = Mutable


@plant("C30", capabilities=Capabilities(confirms=True, durable=True, exclusive=True))
class ClaimsToBeExclusiveAndIsNot(MemorySink):
    """Any number of them open; the epoch rule is not claimed."""


class _WithPassword(MemorySettings):
    password: str = ""


@plant("C31", settings=_WithPassword)
class TakesAPasswordAsPlainText(MemorySink):
    """The settings would print it."""


def _secret_place() -> MemoryPlace:
    place = MemoryPlace()
    place.secrets = {"pass_phrase": "correct-horse-battery"}
    return place


class _WithPassPhrase(MemorySettings):
    pass_phrase: str = Field(default="", repr=False)


@plant("C31", settings=_WithPassPhrase, place=_secret_place)
class ShowsASecretInItsDescription(MemorySink):
    def describe(self) -> dict[str, Any]:
        return {"url": f"memory://user:{getattr(self._settings, 'pass_phrase', '')}@here"}


@plant("C37")
class IsWrittenForALaterContract(_Faulty):
    contract_version: ClassVar[int] = 99


@plant("C37")
class HasANameNobodyCanType(_Faulty):
    name: ClassVar[str] = "Faulty Backend"

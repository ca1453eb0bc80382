"""Tells vLLM that it runs on a CPU, which its wheel for GPUs cannot find out."""

from __future__ import annotations


def find() -> str:
    """Return the platform class."""
    return "vllm.platforms.cpu.CpuPlatform"

"""Adapters that let unmodified engines publish through kvevents; loaded by the engines themselves.

``sglang`` stands on the entry-point group ``sglang.srt.plugins``, ``vllm`` on
``vllm.general_plugins``. Importing them imports neither an engine nor pydantic, because the engines
load their plugins in every process, wanted or not.
"""

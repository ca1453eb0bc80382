"""A small but real prefix cache and the traffic to fill it: what the demo and ``publish`` run on.

No model, no GPU: tokens are made up, but the cache stores, matches, evicts and reports blocks as an
engine's does. Nothing here knows a transport.
"""

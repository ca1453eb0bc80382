"""A sender in a process of its own: ``"sender": "process"``.

The path of a batch: ``Outbox.take`` -> ``Feeder`` encodes it -> a socket pair -> ``Inbox`` -> ``Sender``,
which is the same as in a thread. What the engine's process pays is the encoding and one system call for
a group; numbering, sending, receipts, replay and the client library have an interpreter of their own.
"""

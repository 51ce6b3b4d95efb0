"""The estimated cost of a run: samples, memory, seconds, bytes on disk and between server and clients."""

"""What a run will cost: samples, memory, seconds, bytes on disk and between server and clients."""

"""How workers talk to each other: the native library, the bootstrap service on worker 0, the pool of communicators."""

"""The gateway: tags every chunk, journals it to SQLite, then publishes it."""

"""The NiceGUI page. It holds no truth: everything shown comes from the gateway."""

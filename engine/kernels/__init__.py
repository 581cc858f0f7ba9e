"""Kernels for machines where MLX's own are slow: its CPU backend is one thread at a twentieth of the speed."""

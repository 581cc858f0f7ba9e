"""The expert-paging engine: Mixture-of-Experts models larger than memory, on MLX and mlx-lm."""

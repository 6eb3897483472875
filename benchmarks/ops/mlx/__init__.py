"""Operation benchmarks of the MLX backend against the ways of mlx-vlm; they need no PyTorch."""

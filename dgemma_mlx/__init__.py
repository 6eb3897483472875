"""The MLX backend."""

"""The PyTorch backend: CUDA, and the CPU through plain torch ops."""

"""DiffusionGemma on Apple silicon and NVIDIA cards: one core, one trajectory."""

"""The weight-format converter."""
